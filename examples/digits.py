"""Trains a LightningModule on handwritten digits with Trainer(accelerator="csx").

    python examples/digits.py

The data are the 1,797 digits that scikit-learn ships. The training step and the validation step are each
traced once, compiled, and replayed for every batch; a checkpoint and TensorBoard logs are written.
"""

from __future__ import annotations

import argparse
import logging
import time

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Digits(L.LightningDataModule):
    """8 x 8 grey images, values 0 to 1, and their labels."""

    def __init__(self, batch_size: int = 64) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        data = load_digits()
        images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
        dataset = TensorDataset(images, torch.tensor(data.target))
        generator = torch.Generator().manual_seed(0)
        self.train, self.val = random_split(dataset, [len(dataset) - 320, 320], generator=generator)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val, self.batch_size)


class Classifier(L.LightningModule):
    """A small convolutional network."""

    def __init__(self, lr: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(64 * 2 * 2, 10),
        )  # fmt: skip

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        x, y = batch
        logits = self.net(x)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_acc", (logits.argmax(-1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.hparams["lr"], total_steps=steps, cycle_momentum=False
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class StepRate(L.Callback):
    """Prints how many steps a second each epoch ran."""

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.start, self.first = time.perf_counter(), trainer.global_step

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        rate = (trainer.global_step - self.first) / (time.perf_counter() - self.start)
        accuracy = float(trainer.callback_metrics.get("val_acc", 0))
        print(f"epoch {trainer.current_epoch}: {rate:.0f} steps/s, validation accuracy {accuracy:.3f}")


def main() -> float:
    parser = argparse.ArgumentParser()
    parser.add_argument("--accelerator", default="csx")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", default="digits_run", help="folder for checkpoints and logs")
    options = parser.parse_args()
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("cstorch").setLevel(logging.INFO)

    L.seed_everything(1)
    start = time.perf_counter()
    checkpoint = ModelCheckpoint(f"{options.out}/checkpoints", monitor="val_acc", mode="max")
    trainer = L.Trainer(
        accelerator=options.accelerator,
        max_epochs=options.epochs,
        callbacks=[checkpoint, StepRate()],
        logger=TensorBoardLogger(options.out, name="logs"),
        log_every_n_steps=5,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), datamodule=Digits())
    accuracy = float(checkpoint.best_model_score)
    print(
        f"best validation accuracy {accuracy:.3f} after {time.perf_counter() - start:.0f} s, compile included\n"
        f"checkpoint: {checkpoint.best_model_path}\nlogs:       tensorboard --logdir {options.out}/logs"
    )
    return accuracy


if __name__ == "__main__":
    main()
