"""LightningModules for the tests, and two runs of one of them side by side."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from programs import TASKS
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Module(L.LightningModule):
    """Trains one of the tasks; counts the Python runs of its steps."""

    def __init__(self, task: str = "mlp", optimizer: str = "adamw") -> None:
        super().__init__()
        self.net = TASKS[task].model()
        self.optimizer_name = optimizer
        self.python_runs = {"train": 0, "val": 0}

    def loss(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = batch
        logits = self.net(x)
        return F.cross_entropy(logits, y.flatten()), logits

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, torch.Tensor]:
        self.python_runs["train"] += 1
        loss, logits = self.loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log("index", batch_idx)
        return {"loss": loss, "logits": logits}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.python_runs["val"] += 1
        loss, logits = self.loss(batch)
        self.log_dict({"val_loss": loss, "val_acc": (logits.argmax(-1) == batch[1].flatten()).float().mean()})

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.net(batch[0])

    def configure_optimizers(self) -> dict[str, Any]:
        make = {
            "adamw": lambda p: torch.optim.AdamW(p, lr=5e-3),
            "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        }[self.optimizer_name]
        optimizer = make(self.parameters())
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Recorder(L.Callback):
    """What a person would see of each step."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        row = {name: float(value) for name, value in trainer.callback_metrics.items()}
        row["output_loss"] = float(outputs["loss"])
        row["output_logits"] = float(outputs["logits"].sum())
        row["lr"] = trainer.optimizers[0].param_groups[0]["lr"]
        row["global_step"] = trainer.global_step
        self.rows.append(row)


def loader(task: str, batches: int = 6) -> DataLoader[Any]:
    made = TASKS[task].batches(batches)
    x = torch.cat([b[0] for b in made])
    y = torch.stack([b[1] for b in made]).reshape(len(x), *((-1,) if task == "gpt" else ()))
    return DataLoader(TensorDataset(x, y), batch_size=len(made[0][0]))


def fit(accelerator: str, root: Any, task: str = "mlp", optimizer: str = "adamw", **options: Any) -> Any:
    """One `Trainer.fit`; the trainer, the module and the recorder."""
    options = {"max_epochs": 2, "logger": False, **options}
    L.seed_everything(3, verbose=False)
    module, recorder = Module(task, optimizer), Recorder()
    ckpt_path = options.pop("ckpt_path", None)
    callbacks = [recorder, *options.pop("callbacks", [])]
    trainer = L.Trainer(
        accelerator=accelerator,
        devices=options.pop("devices", 1),
        default_root_dir=root,
        callbacks=callbacks,
        enable_progress_bar=options.pop("enable_progress_bar", False),
        enable_model_summary=options.pop("enable_model_summary", False),
        num_sanity_val_steps=options.pop("num_sanity_val_steps", 1),
        **options,
    )
    trainer.fit(module, loader(task), loader(task, 2), ckpt_path=ckpt_path)
    return trainer, module, recorder


def assert_equal_fits(cpu: Any, csx: Any) -> None:
    """Every metric at every step, every weight and buffer, the progress."""
    (cpu_trainer, cpu_module, cpu_rows), (csx_trainer, csx_module, csx_rows) = cpu, csx
    assert len(cpu_rows.rows) == len(csx_rows.rows)
    for expected, found in zip(cpu_rows.rows, csx_rows.rows, strict=True):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    for name, value in cpu_module.state_dict().items():
        torch.testing.assert_close(csx_module.state_dict()[name].cpu(), value, rtol=1e-5, atol=1e-6)
    assert csx_trainer.global_step == cpu_trainer.global_step
    assert csx_trainer.fit_loop.state_dict() == cpu_trainer.fit_loop.state_dict()


class Linear(L.LightningModule):
    """The smallest module; subclasses replace `training_step`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(torch.arange(32.0).reshape(8, 4) / 32, batch_size=2)
