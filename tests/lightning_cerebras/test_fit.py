"""A fit on csx gives what a fit on the cpu gives, step by step."""

import warnings

import cstorch
import lightning as L
import pytest
import torch
from cstorch.errors import NotExecutedError, ValueReadError
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger
from modules import Linear, Module, assert_equal_fits, fit, loader


def both(tmp_path, **options):
    make = options.pop("callbacks", list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(fit(a, tmp_path / a, callbacks=make(), **options) for a in ("cpu", "csx"))


@pytest.mark.parametrize("task", ["mlp", "cnn", "gpt"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_fit_equals_cpu(tmp_path, task, optimizer):
    cpu, csx = both(tmp_path, task=task, optimizer=optimizer)
    assert_equal_fits(cpu, csx)
    assert csx[1].python_runs == {"train": 1, "val": 1}
    assert cpu[1].python_runs["train"] == 12


@pytest.mark.native
def test_compiled_fit_equals_cpu(tmp_path):
    assert_equal_fits(*both(tmp_path, task="mlp"))


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate_grad_batches": 4},
        {"gradient_clip_val": 0.05},
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
        {"limit_train_batches": 3, "max_epochs": 3},
        {"max_steps": 7, "max_epochs": -1},
        {"val_check_interval": 2},
        {"fast_dev_run": 2},
        {"num_sanity_val_steps": 0},
    ],
    ids=str,
)
def test_trainer_arguments_equal_cpu(tmp_path, options):
    assert_equal_fits(*both(tmp_path, **options))


def test_parameters_are_the_same_objects_before_and_after(tmp_path):
    module = Module()
    before = list(module.parameters())
    trainer = L.Trainer(accelerator="csx", max_epochs=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    trainer.fit(module, loader("mlp"))
    assert all(a is b for a, b in zip(before, module.parameters()))
    assert all(type(p) is torch.nn.Parameter for p in module.parameters())


def test_fit_after_an_unrelated_cpu_backward(tmp_path):
    (torch.ones(2, requires_grad=True) * 2).sum().backward()
    assert_equal_fits(*both(tmp_path, max_epochs=1))


def test_logged_rows_equal_cpu(tmp_path):
    rows = {}
    for accelerator in ("cpu", "csx"):
        logger = L.pytorch.loggers.CSVLogger(tmp_path / accelerator)
        fit(accelerator, tmp_path, logger=logger, log_every_n_steps=2)
        with open(logger.log_dir + "/metrics.csv") as file:
            header, *lines = [line.strip().split(",") for line in file]
        rows[accelerator] = [{k: float(v) for k, v in zip(header, line) if v} for line in lines]
    assert len(rows["csx"]) == len(rows["cpu"]) > 4
    for found, expected in zip(rows["csx"], rows["cpu"]):
        assert found == pytest.approx(expected, rel=1e-5)


def test_checkpoints_equal_cpu_and_open_in_plain_torch(tmp_path):
    make = lambda: [ModelCheckpoint(monitor="val_acc", mode="max", save_top_k=2, save_last=True, every_n_epochs=1)]  # noqa: E731
    cpu, csx = both(tmp_path, callbacks=make, max_epochs=3)
    assert_equal_fits(cpu, csx)
    files = {a: sorted(p.name for p in (tmp_path / a).rglob("*.ckpt")) for a in ("cpu", "csx")}
    assert files["cpu"] == files["csx"]
    for name in files["cpu"]:
        expected, found = (torch.load(next((tmp_path / a).rglob(name)), weights_only=True) for a in ("cpu", "csx"))
        assert found.keys() == expected.keys()
        for key, value in expected["state_dict"].items():
            torch.testing.assert_close(found["state_dict"][key], value, rtol=1e-5, atol=1e-6)
        for index, state in expected["optimizer_states"][0]["state"].items():
            for key, value in state.items():
                torch.testing.assert_close(
                    found["optimizer_states"][0]["state"][index][key], value, rtol=1e-5, atol=1e-6
                )
        assert found["loops"] == expected["loops"]


@pytest.mark.parametrize(("first", "then"), [("csx", "csx"), ("cpu", "csx"), ("csx", "cpu")])
def test_resume_equals_an_unbroken_run(tmp_path, first, then):
    straight = fit("cpu", tmp_path / "straight", max_epochs=4)
    fit(first, tmp_path / "a", max_epochs=2)
    checkpoint = next((tmp_path / "a").rglob("*.ckpt"))
    resumed = fit(then, tmp_path / "b", max_epochs=4, ckpt_path=checkpoint, num_sanity_val_steps=0)
    assert resumed[0].global_step == straight[0].global_step == 24
    for name, value in straight[1].state_dict().items():
        torch.testing.assert_close(resumed[1].state_dict()[name], value, rtol=1e-5, atol=1e-6)
    for found, expected in zip(resumed[2].rows, straight[2].rows[12:]):
        assert found["train_loss_step"] == pytest.approx(expected["train_loss_step"], rel=1e-4)


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_evaluation_equals_cpu(tmp_path, stage):
    found = {}
    for accelerator in ("cpu", "csx"):
        L.seed_everything(1, verbose=False)
        trainer = L.Trainer(accelerator=accelerator, devices=1, logger=False, enable_progress_bar=False,
                            default_root_dir=tmp_path)  # fmt: skip
        arguments = {} if stage == "predict" else {"verbose": False}
        found[accelerator] = getattr(trainer, stage)(Module("cnn"), loader("cnn"), **arguments)
    torch.testing.assert_close(found["csx"], found["cpu"], rtol=1e-5, atol=1e-6)


def test_dropout_differs_from_step_to_step(tmp_path):
    seen = []

    class Dropping(Linear):
        def training_step(self, batch, batch_idx):
            loss = torch.nn.functional.dropout(torch.ones(64, device=self.device), 0.5)
            return {"loss": super().training_step(batch, batch_idx), "mask": loss}

        def on_train_batch_end(self, outputs, batch, batch_idx):
            seen.append(outputs["mask"])

    run(Dropping(), tmp_path)
    assert len(seen) == 4
    assert all(not torch.equal(seen[i], seen[j]) for i in range(4) for j in range(i))


def run(module, tmp_path, **options):
    trainer = L.Trainer(
        accelerator="csx",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        **options,
    )
    trainer.fit(module)
    return trainer


def test_a_user_s_optimizer_step_is_honoured(tmp_path):
    lrs = []

    class WarmUp(Linear):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            optimizer.param_groups[0]["lr"] = 0.1 * batch_idx
            optimizer.step(closure=optimizer_closure)
            lrs.append(optimizer.param_groups[0]["lr"])

    class ClosureFirst(Linear):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            optimizer_closure()
            optimizer.step()

    L.seed_everything(1, verbose=False)
    module = WarmUp()
    before = module.layer.weight.detach().clone()
    run(module, tmp_path, limit_train_batches=1)
    assert torch.equal(module.layer.weight, before)  # lr 0 in the first step
    run(module, tmp_path)
    assert lrs[1:] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert not torch.equal(module.layer.weight, before)

    weights = []
    for cls in (Linear, ClosureFirst):
        L.seed_everything(1, verbose=False)
        module = cls()
        run(module, tmp_path)
        weights.append(module.layer.weight.detach())
    torch.testing.assert_close(*weights)


def test_reading_a_value_in_a_step_names_the_line(tmp_path):
    class Reads(Linear):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            print(loss)  # here
            return loss

    with pytest.raises(ValueReadError, match=r"test_fit\.py:\d+.*self\.log"):
        run(Reads(), tmp_path)


def test_branches_on_the_batch_index_are_followed(tmp_path):
    seen = []

    class Branches(Linear):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            if batch_idx % 2 == 0:
                self.log("even", batch_idx, on_step=True)
            return loss

        def on_train_batch_end(self, outputs, batch, batch_idx):
            seen.append(float(self.trainer.callback_metrics["even"]))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(Branches(), tmp_path)
    assert seen == [0, 0, 2, 2]


def test_the_profiler_and_a_second_fit_work(tmp_path):
    module = Linear()
    run(module, tmp_path, profiler="simple")
    run(module, tmp_path)


def test_a_learning_rate_logged_in_the_step_is_that_of_each_step(tmp_path):
    seen = []

    class LogsRate(Linear):
        def training_step(self, batch, batch_idx):
            self.log("lr", self.optimizers().param_groups[0]["lr"])
            return super().training_step(batch, batch_idx)

        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

        def on_train_batch_end(self, outputs, batch, batch_idx):
            seen.append(float(self.trainer.callback_metrics["lr"]))

    run(LogsRate(), tmp_path)
    assert seen == pytest.approx([0.1, 0.05, 0.025, 0.0125])


@pytest.mark.parametrize("mode", ["validate_only", "compile_only"])
def test_a_backend_that_runs_nothing_ends_the_fit_after_the_first_step(mode):
    trainer = L.Trainer(accelerator="csx", max_epochs=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    module = Module()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with (
        cstorch.backend("CSX", **{mode: True}) as backend,
        pytest.raises(NotExecutedError, match="nothing is run, so the Trainer cannot go on"),
    ):
        trainer.fit(module, loader("mlp"))
    assert backend.programs == 1
    for name, value in module.state_dict().items():
        assert torch.equal(value.cpu(), before[name])


@pytest.mark.parametrize("mode", ["validate_only", "compile_only"])
def test_the_strategy_runs_nothing_and_reports_beside_the_logs(mode, tmp_path, capsys):
    from lightning_cerebras import CSXStrategy

    logger = CSVLogger(tmp_path)
    trainer = L.Trainer(accelerator="csx", strategy=CSXStrategy(**{mode: True}), max_epochs=1, logger=logger,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    module = Module()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(NotExecutedError, match="nothing is run, so the Trainer cannot go on"):
        trainer.fit(module, loader("mlp"))
    assert "training_step\n  operations  " in capsys.readouterr().err
    assert (tmp_path / "lightning_logs" / "version_0" / "csx" / "compile" / "latest" / "report.html").is_file()
    for name, value in module.state_dict().items():
        assert torch.equal(value.cpu(), before[name])


class Remote(Logger):
    """A logger whose files are elsewhere."""

    name = version = "remote"
    log_dir = "memory://runs"

    def log_metrics(self, metrics, step=None):
        pass

    log_hyperparams = log_metrics


@pytest.mark.parametrize("options", [{}, {"fast_dev_run": True}, {"logger": Remote()}], ids=["none", "dev", "remote"])
def test_a_trainer_without_a_log_folder_leaves_nothing_behind(tmp_path, options):
    trainer = L.Trainer(accelerator="csx", **{"max_epochs": 1, "logger": False, **options}, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    trainer.fit(Linear())
    assert list(tmp_path.iterdir()) == []  # which is the working folder too
