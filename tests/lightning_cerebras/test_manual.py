"""Manual optimisation on csx gives what it gives on the cpu: weights, counters, rates and files at every step."""

import warnings

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader


class Rows(L.Callback):
    """What a person would see of each step."""

    def __init__(self):
        self.rows = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        row = {name: float(value) for name, value in trainer.callback_metrics.items()}
        row["outputs"] = {k: float(v) for k, v in outputs.items()} if outputs else {}
        row["rates"] = [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups]
        row["weights"] = [p.detach().cpu().clone() for p in module.parameters()]
        row["grads"] = [p.requires_grad for p in module.parameters()]
        row["global_step"] = trainer.global_step
        self.rows.append(row)


class Manual(L.LightningModule):
    """Two nets with an optimizer each; subclasses bring `training_step`."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.a, self.b = nn.Linear(4, 3), nn.Linear(3, 2)
        self.python_runs = 0

    def configure_optimizers(self):
        a = torch.optim.Adam(self.a.parameters(), lr=0.02)
        b = torch.optim.SGD(self.b.parameters(), lr=0.1, momentum=0.9)
        return [a, b], [torch.optim.lr_scheduler.StepLR(a, 2, 0.5), torch.optim.lr_scheduler.ExponentialLR(b, 0.9)]

    def loss(self, batch):
        return (self.b(self.a(batch).tanh()) - batch[:, :2]).square().mean()

    def train_dataloader(self):
        return DataLoader(torch.randn(16, 4, generator=torch.Generator().manual_seed(1)), batch_size=2)


class Gan(Manual):
    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        with first.toggle_model():
            loss = self.loss(batch)
            first.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(first, gradient_clip_val=0.1, gradient_clip_algorithm="norm")
            first.step()
        self.toggle_optimizer(second)
        other = -0.1 * self.loss(batch).log()
        second.zero_grad()
        self.manual_backward(other)
        self.clip_gradients(second, gradient_clip_val=0.05, gradient_clip_algorithm="value")
        second.step()
        self.untoggle_optimizer(second)
        self.log_dict({"first": loss, "second": other}, prog_bar=True)
        for scheduler in self.lr_schedulers():
            scheduler.step()


class Closures(Manual):
    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():

            def closure(optimizer=optimizer):
                loss = self.loss(batch)
                optimizer.zero_grad()
                self.manual_backward(loss)
                return loss

            loss = optimizer.step(closure=closure)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss


class Accumulates(Manual):
    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        loss = self.loss(batch) / 3
        self.manual_backward(loss)
        if (batch_idx + 1) % 3 == 0:
            first.step()
            second.step()
            first.zero_grad()
            second.zero_grad()
            self.lr_schedulers()[0].step()
        return {"loss": loss, "twice": 2 * loss}


class LastBatch(Manual):
    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        for optimizer in (first, second):
            optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        first.step()
        if self.trainer.is_last_batch and (self.trainer.current_epoch + 1) % 2 == 0:
            self.lr_schedulers()[1].step()
            self.log("epoch", self.current_epoch)
        if self.global_step % 2 == 1:
            second.step()
        self.log("steps", self.global_step)


class ReadsSteps(Manual):
    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        before = self.global_step
        loss = self.loss(batch)
        self.manual_backward(loss * (1 + 0.1 * self.global_step))
        first.step()
        second.step()
        first.zero_grad()
        second.zero_grad()
        self.log_dict({"before": before, "after": self.trainer.global_step, "index": self.trainer.fit_loop.batch_idx})


class Hooks(Manual):
    """Steps in a hook outside of the step; logs in hooks inside of it."""

    def training_step(self, batch, batch_idx):
        self.manual_backward(self.loss(batch))

    def on_before_optimizer_step(self, optimizer):
        self.log("norm", nn.utils.get_total_norm([p.grad for p in self.parameters() if p.grad is not None]))

    def on_after_backward(self):
        self.log("seen", self.a.weight.grad.sum())

    def on_train_batch_end(self, outputs, batch, batch_idx):
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()

    def on_train_epoch_end(self):
        self.lr_schedulers()[0].step()


def fit(cls, accelerator, root, **options):
    L.seed_everything(2, verbose=False)
    module, rows = cls(), Rows()
    trainer = L.Trainer(
        accelerator=accelerator,
        devices=1,
        default_root_dir=root,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[rows, *options.pop("callbacks", [])],
        **{"max_epochs": 3, **options},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, ckpt_path=options.get("ckpt_path"))
    return trainer, module, rows.rows


def assert_equal(cpu, csx):
    assert len(csx[2]) == len(cpu[2])
    for index, (found, expected) in enumerate(zip(csx[2], cpu[2], strict=True)):
        assert found.keys() == expected.keys()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, msg=lambda m, i=index: f"row {i}: {m}")
    assert csx[0].fit_loop.state_dict() == cpu[0].fit_loop.state_dict()


@pytest.mark.parametrize("cls", [Gan, Closures, Accumulates, LastBatch, ReadsSteps, Hooks])
def test_manual_optimisation_equals_cpu(tmp_path, cls):
    assert_equal(*(fit(cls, a, tmp_path / a, enable_checkpointing=False) for a in ("cpu", "csx")))


@pytest.mark.parametrize("cls", [Gan, Accumulates])
def test_steps_decide_when_training_and_saving_happen(tmp_path, cls):
    runs, files = [], []
    for accelerator in ("cpu", "csx"):
        root = tmp_path / accelerator
        saves = ModelCheckpoint(root, every_n_train_steps=4, save_top_k=-1)
        runs.append(fit(cls, accelerator, root, max_epochs=-1, max_steps=13, callbacks=[saves]))
        files.append(sorted(p.name for p in root.rglob("*.ckpt")))
    assert_equal(*runs)
    assert files[0] == files[1]
    assert files[0]
