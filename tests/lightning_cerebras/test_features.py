"""Schedulers, overridden hooks and callbacks that change training: csx equals the cpu at each step."""

import warnings

import lightning as L
import pytest
import torch
from lightning.pytorch import callbacks
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader


class Rows(L.Callback):
    def __init__(self):
        self.rows = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        self.rows.append(
            {
                "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
                "weights": [p.detach().cpu().clone() for p in module.parameters()],
                "groups": [[group["lr"], group.get("momentum"), group.get("betas")] for group in groups],
                "global_step": trainer.global_step,
            }
        )


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        self.head = nn.Linear(6, 2)

    def training_step(self, batch, batch_idx):
        loss = (self.head(self.backbone(batch)) - batch[:, :2]).square().mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val", self.head(self.backbone(batch)).square().mean())

    def optimizer(self):
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)

    def configure_optimizers(self):
        return self.optimizer()

    def train_dataloader(self):
        return DataLoader(torch.randn(24, 4, generator=torch.Generator().manual_seed(1)), batch_size=4)

    def val_dataloader(self):
        return DataLoader(torch.randn(8, 4, generator=torch.Generator().manual_seed(2)), batch_size=4)


def fit(cls, accelerator, root, **options):
    L.seed_everything(3, verbose=False)
    made = options.pop("callbacks", list)()
    module, rows = cls(), Rows()
    trainer = L.Trainer(accelerator=accelerator, devices=1, logger=False, default_root_dir=root,
                        callbacks=[rows, *made], enable_progress_bar=False, enable_model_summary=False,
                        **{"max_epochs": 3, "enable_checkpointing": False, **options})  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module)
    return trainer, module, rows.rows


def assert_equal(tmp_path, cls=Net, **options):
    cpu, csx = (fit(cls, accelerator, tmp_path / accelerator, **options) for accelerator in ("cpu", "csx"))
    assert len(csx[2]) == len(cpu[2]) > 3
    for index, (found, expected) in enumerate(zip(csx[2], cpu[2], strict=True)):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, msg=lambda m, i=index: f"row {i}: {m}")
    for name, value in cpu[1].state_dict().items():
        torch.testing.assert_close(csx[1].state_dict()[name].cpu(), value, rtol=1e-5, atol=1e-6)
    assert csx[0].fit_loop.state_dict() == cpu[0].fit_loop.state_dict()


SCHEDULERS = {
    "step": lambda o: {"scheduler": lr_scheduler.StepLR(o, 2, 0.5), "interval": "step"},
    "step_frequency": lambda o: {"scheduler": lr_scheduler.StepLR(o, 1, 0.5), "interval": "step", "frequency": 4},
    "epoch": lambda o: lr_scheduler.ExponentialLR(o, 0.5),
    "one_cycle": lambda o: {"scheduler": lr_scheduler.OneCycleLR(o, 0.5, total_steps=18), "interval": "step"},
    "cosine": lambda o: {"scheduler": lr_scheduler.CosineAnnealingLR(o, 18), "interval": "step"},
    "warm_up": lambda o: {
        "scheduler": lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 5), lr_scheduler.ConstantLR(o, 0.5, 4)], [5]
        ),
        "interval": "step",
    },
    "plateau": lambda o: {"scheduler": lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=1.0), "monitor": "val"},
    "plateau_step": lambda o: {
        "scheduler": lr_scheduler.ReduceLROnPlateau(o, patience=1),
        "monitor": "loss",
        "interval": "step",
    },
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_equal_cpu(tmp_path, name):
    class Scheduled(Net):
        def configure_optimizers(self):
            optimizer = self.optimizer()
            return {"optimizer": optimizer, "lr_scheduler": SCHEDULERS[name](optimizer)}

    assert_equal(tmp_path, Scheduled)


class AdamCycle(Net):
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        cycle = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=18)
        return [optimizer], [{"scheduler": cycle, "interval": "step"}]


class OwnSchedulerStep(Net):
    def configure_optimizers(self):
        optimizer = self.optimizer()
        return [optimizer], [lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2)]

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step(epoch=self.current_epoch + 1)


class WarmUp(Net):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        for group in optimizer.param_groups:
            group["lr"] = min(1.0, (self.trainer.global_step + 1) / 6) * 0.3
        optimizer.step(closure=optimizer_closure)


class EverySecondStep(Net):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        if batch_idx % 2:
            optimizer.step(closure=optimizer_closure)
        else:
            optimizer_closure()


class OwnClipping(Net):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        if self.current_epoch > 0:
            self.clip_gradients(optimizer, gradient_clip_val=0.05, gradient_clip_algorithm="norm")


class OwnBackward(Net):
    def backward(self, loss):
        (0.5 * loss).backward()

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        optimizer.zero_grad(set_to_none=False)


class Freezes(Net):
    def on_train_epoch_start(self):
        for p in self.backbone.parameters():
            p.requires_grad = self.current_epoch == 1


class OverwritesLr(Net):
    def on_train_batch_start(self, batch, batch_idx):
        self.optimizers().param_groups[0]["lr"] = 0.1 / (1 + batch_idx)


CASES = [AdamCycle, OwnSchedulerStep, WarmUp, EverySecondStep, OwnClipping, OwnBackward, Freezes, OverwritesLr]


@pytest.mark.parametrize("cls", CASES)
def test_overridden_hooks_equal_cpu(tmp_path, cls):
    assert_equal(tmp_path, cls)


class Thaws(callbacks.BaseFinetuning):
    def freeze_before_training(self, module):
        self.freeze(module.backbone)

    def finetune_function(self, module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(module.backbone, optimizer, lr=0.05)


class HeadFirst(Net):
    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.3, momentum=0.9)


class HeadFirstAdam(Net):
    def configure_optimizers(self):
        optimizer = torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=0.03)
        return [optimizer], [lr_scheduler.ExponentialLR(optimizer, 0.9)]


@pytest.mark.parametrize("cls", [HeadFirst, HeadFirstAdam])
@pytest.mark.parametrize(
    "make", [lambda: [Thaws()], lambda: [callbacks.BackboneFinetuning(1, lambda epoch: 1.5, verbose=False)]]
)
def test_finetuning_equals_cpu(tmp_path, cls, make):
    assert_equal(tmp_path, cls, callbacks=make, max_epochs=4)


MAKERS = {
    "accumulation": lambda: [callbacks.GradientAccumulationScheduler({0: 1, 1: 4, 2: 2})],
    "swa": lambda: [callbacks.StochasticWeightAveraging(0.05, swa_epoch_start=1, annealing_epochs=2)],
    "early_stopping": lambda: [callbacks.EarlyStopping("val", patience=0)],
    "lr_monitor_timer": lambda: [callbacks.Timer(duration="00:01:00:00")],
}
if hasattr(callbacks, "EMAWeightAveraging"):
    MAKERS["ema"] = lambda: [callbacks.EMAWeightAveraging(decay=0.8)]
    MAKERS["averaging"] = lambda: [callbacks.WeightAveraging()]


@pytest.mark.parametrize("name", MAKERS)
def test_callbacks_equal_cpu(tmp_path, name):
    assert_equal(tmp_path, callbacks=MAKERS[name], max_epochs=4)


def test_lr_find_equals_cpu(tmp_path):
    found = {}
    for accelerator in ("cpu", "csx"):
        L.seed_everything(3, verbose=False)
        module = Net()
        module.lr = 0.1
        module.optimizer = lambda module=module: torch.optim.SGD(module.parameters(), lr=module.lr)
        trainer = L.Trainer(
            accelerator=accelerator,
            devices=1,
            logger=False,
            max_epochs=2,
            default_root_dir=tmp_path,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            finder = L.pytorch.tuner.Tuner(trainer).lr_find(module, num_training=20, early_stop_threshold=None)
            trainer.fit(module)
        found[accelerator] = finder.results, finder.suggestion(), [p.detach().cpu() for p in module.parameters()]
    torch.testing.assert_close(found["csx"], found["cpu"], rtol=1e-4, atol=1e-6)
