"""The same model, data and schedule through Lightning.

    python examples/gpt/train_lightning.py
    python examples/gpt/train_lightning.py --resume gpt_run/checkpoints/last.ckpt --steps 400

`--backend CPU` trains on the cpu.
"""

from __future__ import annotations

import math

import lightning as L
from configuration import Config, parse_config
from data import batches
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from model import GPT, loss_of
from optimization import make_optimizer, make_schedule
from torch.utils.data import DataLoader, IterableDataset


class Batches(IterableDataset):
    """Ready batches, from the one on that training has reached."""

    def __init__(self, split: str, config: Config, first: int = 0) -> None:
        self.arguments = split, config, first

    def __iter__(self):
        return batches(*self.arguments)


class Language(L.LightningModule):
    """The model with its loss, optimizer and schedule."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.model = GPT(config)

    def training_step(self, batch, batch_idx):
        tokens, labels = batch
        loss = loss_of(self.model(tokens), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        tokens, labels = batch
        self.log("eval_loss", loss_of(self.model(tokens), labels), prog_bar=True)

    def configure_optimizers(self):
        optimizer = make_optimizer(self.model, self.config)
        schedule = make_schedule(optimizer, self.config)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def train_dataloader(self):
        return DataLoader(Batches("train", self.config, self.trainer.global_step), batch_size=None)

    def val_dataloader(self):
        return DataLoader(Batches("eval", self.config), batch_size=None)


def main(config: Config) -> float:
    """Train; the last loss of the evaluation text, in nats a byte."""
    L.seed_everything(config.seed)
    every = min(config.eval_every, config.steps)
    saver = ModelCheckpoint(f"{config.out}/checkpoints", save_last=True, every_n_train_steps=every)
    trainer = L.Trainer(
        accelerator=config.backend.lower(),
        max_steps=config.steps,
        val_check_interval=every,
        check_val_every_n_epoch=None,
        limit_val_batches=config.eval_batches,
        gradient_clip_val=config.max_gradient_norm,
        callbacks=[saver],
        logger=TensorBoardLogger(config.out, name="logs"),
        log_every_n_steps=10,
    )
    language = Language(config)
    trainer.fit(language, ckpt_path=config.resume or None)
    (metrics,) = trainer.validate(language, verbose=False)  # the last evaluation may have been some steps ago
    mean = metrics["eval_loss"]
    print(f"step {trainer.global_step}: evaluation loss {mean:.3f} nats a byte, {mean / math.log(2):.2f} bits")
    return mean


if __name__ == "__main__":
    main(parse_config(__doc__))
