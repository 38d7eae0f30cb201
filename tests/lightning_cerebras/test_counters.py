"""Lightning's counters, flags and metrics read in a step: right at each step, or refused; never those of the trace."""

import warnings

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from modules import Linear


class Rows(L.Callback):
    def __init__(self):
        self.rows = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        weights = [p.detach().cpu().clone() for p in module.parameters()]
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.rows.append((metrics, weights, trainer.global_step, {} if outputs is None else dict(outputs)))

    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0):
        self.rows.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def fit(cls, accelerator, **options):
    L.seed_everything(1, verbose=False)
    module, rows = cls(), Rows()
    options = {"max_epochs": 3, "logger": False, "enable_checkpointing": False, **options}
    trainer = L.Trainer(accelerator=accelerator, devices=1, callbacks=[rows], enable_progress_bar=False,
                        enable_model_summary=False, **options)  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module)
    return trainer, rows.rows


def assert_equal(cls, **options):
    (cpu, expected), (csx, found) = (fit(cls, a, **options) for a in ("cpu", "csx"))
    assert len(found) == len(expected) > 2
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert csx.fit_loop.state_dict() == cpu.fit_loop.state_dict()


class Logs(Linear):
    def training_step(self, batch, batch_idx):
        self.log("step", self.global_step)
        self.log("epoch", float(self.current_epoch))
        self.log("progress", self.trainer.global_step / 12, on_step=True, on_epoch=True, reduce_fx="max")
        self.log("total", self.trainer.fit_loop.total_batch_idx)
        return super().training_step(batch, batch_idx)


class Weighs(Linear):
    def training_step(self, batch, batch_idx):
        weight = 0.5**self.current_epoch * (1 + batch_idx) + min(1.0, self.global_step / 6)
        loss = weight * super().training_step(batch, batch_idx)
        return {"loss": loss, "weight": loss * 0 + weight}


class Warms(Linear):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if self.current_epoch > 0:
            loss = 2 * loss
        if self.trainer.is_last_batch:
            self.log("last", loss)
        return loss


class Skips(Linear):
    def training_step(self, batch, batch_idx):
        return None if batch_idx % 2 else super().training_step(batch, batch_idx)


class Validates(Linear):
    def validation_step(self, batch, batch_idx):
        self.log("step", self.global_step, on_step=True, on_epoch=True)
        if not self.trainer.sanity_checking:
            self.log("checked", batch.sum())
        if self.current_epoch == 1:
            self.log("second", batch.mean())

    def val_dataloader(self):
        return self.train_dataloader()


@pytest.mark.parametrize("cls", [Logs, Weighs, Warms, Skips, Validates])
def test_a_step_that_reads_counters_equals_cpu(cls):
    assert_equal(cls)


@pytest.mark.parametrize("cls", [Logs, Weighs, Skips])
def test_with_accumulation(cls):
    assert_equal(cls, accumulate_grad_batches=3)


class Stops(Linear):
    def training_step(self, batch, batch_idx):
        if self.global_step == 5:
            self.trainer.should_stop = True
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("options", [{}, {"min_epochs": 2}, {"min_steps": 7}], ids=str)
def test_a_step_that_stops_the_trainer(options):
    assert_equal(Stops, **options)


def test_counters_as_data_make_one_program():
    runs = []

    class Counted(Weighs):
        def training_step(self, batch, batch_idx):
            runs.append(1)
            return {"loss": (1 + 0.1 * self.global_step + batch_idx) * Linear.training_step(self, batch, batch_idx)}

    fit(Counted, "csx")
    assert len(runs) == 1


@pytest.mark.parametrize("name", ["callback_metrics", "logged_metrics", "progress_bar_metrics"])
def test_metrics_read_in_a_step_are_those_of_each_step(name):
    class Reads(Linear):
        """Weighs by the loss of the step before, with dropout before and after the first read."""

        def training_step(self, batch, batch_idx):
            batch = F.dropout(batch, 0.2)
            metrics = getattr(self.trainer, name)
            loss = super().training_step(F.dropout(batch, 0.2), batch_idx) * (1 + metrics.get("loss", 0.5))
            self.log("loss", loss, prog_bar=True)
            return {"loss": loss, "known": loss * 0 + len(metrics)}

        def validation_step(self, batch, batch_idx):
            self.log("val", self.layer(batch).sum())

        def val_dataloader(self):
            return self.train_dataloader()

    assert_equal(Reads, limit_val_batches=1, num_sanity_val_steps=0, log_every_n_steps=1)


def test_metrics_read_after_a_log_in_the_same_step_are_refused():
    class Reads(Linear):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("loss", loss)
            return loss * self.trainer.callback_metrics["loss"]

    message = r"reads trainer\.callback_metrics at .*test_counters\.py:\d+, after it has logged.*on_train_batch_end"
    with pytest.raises(ValueError, match=message):
        fit(Reads, "csx")


def test_lightning_is_as_before_after_a_failed_step():
    class Fails(Linear):
        def training_step(self, batch, batch_idx):
            raise KeyError("no")

    before = vars(L.Trainer)["sanity_checking"]
    with pytest.raises(KeyError):
        fit(Fails, "csx")
    assert vars(L.Trainer)["sanity_checking"] is before


def test_what_hooks_in_the_step_count_or_read_is_that_of_each_step():
    class Counts(L.Callback):
        def __init__(self):
            self.calls, self.scale = 0, 1.0

        def on_before_zero_grad(self, trainer, module, optimizer):
            self.calls += 1

        def on_after_backward(self, trainer, module):
            module.layer.weight.grad.mul_(self.scale)

        def on_train_epoch_start(self, trainer, module):
            self.scale = 0.5**trainer.current_epoch

    weights, calls = {}, []
    for accelerator in ("cpu", "csx"):
        L.seed_everything(1, verbose=False)
        module, counts = Linear(), Counts()
        trainer = L.Trainer(accelerator=accelerator, devices=1, logger=False, max_epochs=3, callbacks=[counts],
                            enable_checkpointing=False, enable_progress_bar=False,
                            enable_model_summary=False)  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            warnings.filterwarnings("ignore", "The 'train_dataloader' does not have many workers")
            warnings.filterwarnings("ignore", "The number of training batches")
            trainer.fit(module)
        weights[accelerator] = module.layer.weight.detach()
        calls.append(counts.calls)
    assert calls == [12, 12]
    torch.testing.assert_close(weights["csx"], weights["cpu"])
