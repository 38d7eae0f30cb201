"""Steps that take `dataloader_iter` and fetch their batch equal those of the cpu."""

import warnings

import lightning as L
import pytest
import torch
from modules import Linear
from torch.utils.data import DataLoader, IterableDataset


class Fetches(Linear):
    """Every step fetches one batch; what the hooks around it see is kept."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.3), torch.nn.Linear(6, 2))
        self.seen, self.losses = [], []

    def note(self, when, batch, batch_idx, dataloader_idx=0):
        self.seen.append((when, None if batch is None else tuple(batch.shape), batch_idx, dataloader_idx))

    def training_step(self, dataloader_iter):
        batch, batch_idx, _ = next(dataloader_iter)
        loss = (self.layer(batch.to(self.device)) * (batch_idx + 1)).square().mean()
        self.log("loss", loss, on_step=True, on_epoch=True, batch_size=len(batch))
        return loss

    def on_train_batch_start(self, batch, batch_idx):
        self.note("start", batch, batch_idx)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.note("end", batch, batch_idx)
        if outputs:
            self.losses.append(float(outputs["loss"]))

    def evaluate(self, dataloader_iter):
        batch, batch_idx, dataloader_idx = next(dataloader_iter)
        self.log("value", self.layer(batch).sum() * (1 + dataloader_idx) + batch_idx, batch_size=len(batch))
        return self.layer(batch)

    validation_step = test_step = evaluate

    def on_validation_batch_end(self, outputs, batch, batch_idx, dataloader_idx=0):
        self.note("validation", batch, batch_idx, dataloader_idx)
        self.losses.append(float(outputs.sum()))

    def on_test_batch_end(self, outputs, batch, batch_idx, dataloader_idx=0):
        self.note("test", batch, batch_idx, dataloader_idx)

    def predict_step(self, dataloader_iter):
        batch, batch_idx, dataloader_idx = next(dataloader_iter)
        return self.layer(batch) * (dataloader_idx + 1) + batch_idx

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Manual(Fetches):
    automatic_optimization = False

    def training_step(self, dataloader_iter):
        loss = super().training_step(dataloader_iter)
        self.optimizers().zero_grad()
        self.manual_backward(loss)
        self.optimizers().step()
        self.lr_schedulers().step()


class Endless(IterableDataset):
    """A stream that does not know its length."""

    def __iter__(self):
        return iter(torch.arange(40.0).reshape(10, 4) / 40)


def data(rows=10, start=0.0):
    return DataLoader(torch.arange(start, start + rows * 4.0).reshape(rows, 4) / 40, batch_size=4)


def trainer(accelerator, tmp_path, **options):
    return L.Trainer(
        accelerator=accelerator,
        devices=1,
        default_root_dir=tmp_path,
        **{"max_epochs": 3, "logger": False, "enable_progress_bar": False, **options},
        enable_model_summary=False,
        enable_checkpointing=False,
    )


def run(accelerator, tmp_path, do, kind=Fetches, **options):
    L.seed_everything(2, verbose=False)
    module, made = kind(), trainer(accelerator, tmp_path, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = do(made, module)
    return made, module, result


def assert_equal(cpu, csx):
    (cpu_trainer, cpu_module, cpu_result), (csx_trainer, csx_module, csx_result) = cpu, csx
    assert csx_module.seen == cpu_module.seen
    assert csx_module.losses == pytest.approx(cpu_module.losses, rel=1e-4)
    for name, value in cpu_trainer.callback_metrics.items():
        torch.testing.assert_close(csx_trainer.callback_metrics[name], value, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(csx_module.state_dict(), cpu_module.state_dict(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(csx_result, cpu_result, rtol=1e-4, atol=1e-5)
    assert csx_trainer.global_step == cpu_trainer.global_step
    assert csx_trainer.fit_loop.state_dict() == cpu_trainer.fit_loop.state_dict()


@pytest.mark.parametrize(
    ("kind", "loader", "options"),
    [
        (Fetches, data, {}),  # a short last batch
        (Fetches, data, {"gradient_clip_val": 0.1}),
        (Fetches, lambda: DataLoader(Endless(), batch_size=5), {}),  # its end is known when it comes
        (Fetches, lambda: DataLoader(Endless(), batch_size=2), {"limit_train_batches": 3, "val_check_interval": 2}),
        (Manual, data, {}),
    ],
)
def test_a_fit_equals_the_cpu(tmp_path, kind, loader, options):
    def do(made, module):
        made.fit(module, loader(), data(6, 7.0))

    runs = [run(accelerator, tmp_path, do, kind, **options) for accelerator in ("cpu", "csx")]
    assert_equal(*runs)
    assert runs[1][0].global_step > 4


def test_accumulation_over_fetched_batches_is_refused(tmp_path):
    message = r"takes dataloader_iter, and accumulate_grad_batches is 2\. .* accumulate with manual optimisation"
    with pytest.raises(ValueError, match=message):
        trainer("csx", tmp_path, accumulate_grad_batches=2).fit(Fetches(), data())


@pytest.mark.parametrize("what", ["validate", "test", "predict"])
@pytest.mark.parametrize("several", [False, True])
def test_evaluation_equals_the_cpu(tmp_path, what, several):
    def do(made, module):
        loaders = [data(9), data(6, 3.0), data(4)] if several else data()
        return getattr(made, what)(module, loaders, **({} if what == "predict" else {"verbose": False}))

    assert_equal(*(run(accelerator, tmp_path, do) for accelerator in ("cpu", "csx")))


def test_optimizer_step_may_call_the_closure_itself(tmp_path):
    class Twice(Fetches):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            optimizer_closure()
            optimizer.step()

    def do(made, module):
        made.fit(module, data(8))

    assert_equal(*(run(accelerator, tmp_path, do, Twice) for accelerator in ("cpu", "csx")))


def test_a_second_batch_in_a_step_is_refused(tmp_path):
    class Two(Fetches):
        def training_step(self, dataloader_iter):
            next(dataloader_iter)
            return super().training_step(dataloader_iter)

        def validation_step(self, dataloader_iter):
            for batch, _, _ in dataloader_iter:
                self.layer(batch)

    message = r"{} takes a second batch of dataloader_iter.*one batch at each call.*accumulate_grad_batches"
    with pytest.raises(ValueError, match=message.format("training_step")):
        trainer("csx", tmp_path).fit(Two(), data())
    with pytest.raises(ValueError, match=message.format("validation_step")):
        trainer("csx", tmp_path).validate(Two(), data(), verbose=False)


def test_a_step_that_fetches_nothing_is_refused(tmp_path):
    class Idle(Fetches):
        def training_step(self, dataloader_iter):
            return self.layer(torch.ones(2, 4, device=self.device)).sum()

    with pytest.raises(ValueError, match=r"training_step takes no batch of dataloader_iter.*Call next"):
        trainer("csx", tmp_path).fit(Idle(), data())
