"""What a step keeps for later, asserts and counts: with the values of each step, as on the cpu."""

import lightning as L
import pytest
import torch
from cstorch.errors import TraceError
from modules import Linear
from torch.utils.data import DataLoader


class Keeping(Linear):
    """The idioms of epoch ends: lists of outputs, attributes, counts, an annealed weight, a table of the host."""

    kept_by_class = []

    def __init__(self):
        super().__init__()
        self.outputs, self.losses, self.epochs = [], [], []
        self.steps, self.beta, self.last = 0, 1.0, None
        self.table = torch.arange(24.0).reshape(3, 8) / 24

    def training_step(self, batch, batch_idx):
        out = self.layer(batch)
        loss = out.square().mean() * self.beta
        assert torch.isfinite(loss)
        assert not (loss < 0)
        self.steps += 1
        self.last = out.detach()
        self.losses.append(loss.detach().cpu())
        entry = self.table[self.current_epoch, batch_idx]
        self.log("entry", entry, on_epoch=True)
        self.log("steps", self.steps)
        assert not self.trainer.should_stop
        return loss + entry * out.mean()

    def validation_step(self, batch, batch_idx):
        out = self.layer(batch)
        self.outputs.append({"out": out.to("cpu"), "index": batch_idx, "mean": out.mean()})
        self.kept_by_class.append(out.detach())

    def on_validation_epoch_end(self):
        out = torch.cat([o["out"] for o in self.outputs])
        self.epochs.append((out.std(), torch.stack([o["mean"] for o in self.outputs]), len(self.outputs)))
        self.log("std", out.std())
        self.outputs.clear()

    def on_train_epoch_start(self):
        self.beta = self.beta / 2

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.epochs.append(self.last.mean())

    def val_dataloader(self):
        return DataLoader(torch.arange(24.0).reshape(6, 4) / 9, batch_size=2)


def fit(accelerator, module):
    L.seed_everything(1, verbose=False)
    module = module()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(
        accelerator=accelerator, devices=1, max_epochs=3, enable_model_summary=False, num_sanity_val_steps=0, **quiet
    )
    trainer.fit(module)
    return trainer, module


def leaves(value):
    return [leaf for v in value for leaf in leaves(v)] if isinstance(value, (list, tuple)) else [value]


def test_what_steps_keep_equals_the_cpu():
    Keeping.kept_by_class.clear()
    cpu_trainer, cpu = fit("cpu", Keeping)
    by_class = list(Keeping.kept_by_class)
    Keeping.kept_by_class.clear()
    trainer, csx = fit("csx", Keeping)
    assert (csx.steps, csx.beta) == (cpu.steps, cpu.beta) == (12, 0.125)
    pairs = zip(
        leaves([csx.losses, csx.epochs, Keeping.kept_by_class]), leaves([cpu.losses, cpu.epochs, by_class]), strict=True
    )
    for found, expected in pairs:
        found = found.cpu() if isinstance(found, torch.Tensor) else found
        torch.testing.assert_close(found, expected.detach() if isinstance(expected, torch.Tensor) else expected)
    torch.testing.assert_close(dict(trainer.callback_metrics), dict(cpu_trainer.callback_metrics))
    torch.testing.assert_close(csx.layer.weight.detach(), cpu.layer.weight.detach(), check_device=False)


class Failing(Linear):
    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).square().mean()
        assert batch[0, 0] < 0.5
        return loss


def test_an_assertion_fails_at_the_batch_of_the_cpu():
    for accelerator in ("cpu", "csx"):
        module = Failing()
        with pytest.raises(AssertionError, match="" if accelerator == "cpu" else r"batch\[0, 0\] < 0.5 fails at"):
            fit(accelerator, lambda module=module: module)
        assert module.trainer.fit_loop.epoch_loop.batch_idx == 2


class Copying(Linear):
    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean().cpu()


def test_a_copy_on_the_host_does_not_come_back_into_the_step():
    with pytest.raises(TraceError, match=r"made with \.cpu\(\).*no copy"):
        fit("csx", Copying)
