"""`logger.watch(module)`: what its hooks log of gradients is that of the cpu; what they cannot log is said."""

import warnings

import lightning as L
import pytest
import torch
from cstorch.errors import ValueReadError
from modules import Linear
from watching_logger import Watcher


class Net(Linear):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.2), torch.nn.Linear(3, 2))

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


class Manual(Net):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.optimizers().zero_grad()
        self.manual_backward(loss)
        self.optimizers().step()


def fitted(accelerator, tmp_path, log="gradients", every=1, kind=Net, logger=None, callbacks=(), **options):
    """The logger after two epochs, and the warnings about it."""
    L.seed_everything(5, verbose=False)
    logger, module = logger or Watcher(every), kind()
    if log is not None:
        logger.watch(module, log)
    trainer = L.Trainer(
        accelerator=accelerator,
        devices=1,
        max_epochs=2,
        default_root_dir=tmp_path,
        logger=logger,
        log_every_n_steps=2,
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(module)
    return logger.experiment.history.rows, [str(w.message) for w in caught if "watches" in str(w.message)], module


def assert_equal_rows(cpu, csx):
    assert [row[0] for row in csx] == [row[0] for row in cpu]
    for mine, theirs in zip(csx, cpu, strict=True):
        assert list(mine[1:3]) == pytest.approx(list(theirs[1:3]), rel=1e-4, abs=1e-6)
        assert mine[3:] == theirs[3:]


@pytest.mark.parametrize(
    ("every", "kind", "options"),
    [(1, Net, {}), (3, Net, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.05}), (2, Manual, {})],
)
def test_gradients_are_logged_as_on_the_cpu(tmp_path, every, kind, options):
    runs = [fitted(a, tmp_path, every=every, kind=kind, **options) for a in ("cpu", "csx")]
    assert_equal_rows(runs[0][0], runs[1][0])
    assert len(runs[1][0]) > 6
    assert runs[0][1] == []
    (said,) = runs[1][1]
    assert said.startswith("Watcher watches gradients. With accelerator='csx' its hooks are called after each step")
    assert "on_before_optimizer_step, with self.log or cstorch.summarize_tensor" in said
    torch.testing.assert_close(runs[1][2].state_dict(), runs[0][2].state_dict())


def test_hooks_after_accumulation_get_the_parameter_and_its_gradient(tmp_path):
    runs = [fitted(a, tmp_path, log="after") for a in ("cpu", "csx")]
    assert_equal_rows(runs[0][0], runs[1][0])


def test_a_logger_may_begin_and_end_to_watch(tmp_path):
    class Sometimes(L.Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            if trainer.current_epoch == 0 and batch_idx == 1:
                trainer.logger.watch(module)
            if trainer.current_epoch == 1 and batch_idx == 2:
                for handle in trainer.logger.experiment.history.handles:
                    handle.remove()

    runs = [fitted(a, tmp_path, log=None, callbacks=[Sometimes()]) for a in ("cpu", "csx")]
    assert_equal_rows(runs[0][0], runs[1][0])
    assert len([row for row in runs[1][0] if row[0] != "metrics"]) == 4 * 5


def test_hooks_on_modules_have_no_values(tmp_path):
    class Whole(Net):
        def forward(self, x):
            return self.layer(x)

        def training_step(self, batch, batch_idx):
            return self(batch).square().mean()

    plain = fitted("cpu", tmp_path, log=None, kind=Whole)[2]
    rows, (said,), module = fitted("csx", tmp_path, log="parameters", kind=Whole)
    assert {row[0] for row in rows} <= {"metrics"}
    assert said.startswith("Watcher watches hooks on modules, such as that of ")
    assert "watching_logger.py:" in said
    assert "its parameters and outputs are not. Log those with self.log, or with cstorch.summarize_tensor" in said
    torch.testing.assert_close(module.state_dict(), plain.state_dict())


@pytest.mark.parametrize("log", ["halved", "doubled"])
def test_a_hook_that_changes_gradients_is_refused(tmp_path, log):
    with pytest.raises(ValueError, match=r"watching_logger\.py:\d+, which Watcher has registered, changes a gradient"):
        fitted("csx", tmp_path, log=log)


def test_hooks_that_a_logger_s_own_class_makes_count_too(tmp_path):
    class Here(Watcher):
        def watch(self, module, log):
            for name, parameter in module.named_parameters():
                parameter.register_hook(
                    lambda gradient, name=name: self.experiment.history.rows.append((name, gradient.norm().item()))
                )

    runs = [fitted(a, tmp_path, logger=Here()) for a in ("cpu", "csx")]
    assert_equal_rows(runs[0][0], runs[1][0])


def test_other_hooks_are_part_of_the_step(tmp_path):
    class Own(Net):
        def on_fit_start(self):
            self.layer[0].weight.register_hook(lambda gradient: gradient.norm().item())

    with pytest.raises(ValueReadError, match=r"test_watching\.py:\d+.*step_closure"):
        fitted("csx", tmp_path, log=None, kind=Own)
