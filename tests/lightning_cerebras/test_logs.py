"""`self.log` in all its forms: metrics at each step, rows of the logger and the progress bar equal those of the cpu."""

import warnings

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from modules import Linear


class Rows(L.Callback):
    def __init__(self):
        self.rows = []

    def _row(self, trainer, module, *args):
        for kind in (trainer.callback_metrics, trainer.logged_metrics, trainer.progress_bar_metrics):
            self.rows.append({name: float(value) for name, value in kind.items()})

    on_train_batch_end = on_validation_batch_end = on_train_epoch_end = on_validation_epoch_end = _row

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.log("callback/norm", module.layer.weight.grad.norm())


class Levels(Linear):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        for step, epoch in ((True, True), (True, False), (False, True)):
            self.log(f"{step}{epoch}", loss, on_step=step, on_epoch=epoch, prog_bar=step, logger=epoch)
        self.log("detached", loss.detach(), prog_bar=True)
        self.log("plain", 0.25)
        self.log("whole", batch_idx)
        self.log("flag", loss > 0.1)
        return loss


class Reductions(Linear):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        for reduce in ("mean", "sum", "max", "min", torch.max):
            name = getattr(reduce, "__name__", reduce) + ("" if isinstance(reduce, str) else "_function")
            self.log(name, loss, on_step=True, on_epoch=True, reduce_fx=reduce)
        self.log("index_max", batch_idx, on_step=False, on_epoch=True, reduce_fx="max")
        self.log("weighted", loss, on_step=False, on_epoch=True, batch_size=batch_idx + 1)
        self.log("synced", loss, sync_dist=True, on_epoch=True)
        self.log("zero", loss, rank_zero_only=True)
        return loss


class Hooks(Linear):
    def training_step(self, batch, batch_idx):
        self.log_dict({"a": batch.sum(), "b": batch.mean() * self.current_epoch}, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def on_train_batch_start(self, batch, batch_idx):
        self.log("started", batch_idx)

    def on_before_zero_grad(self, optimizer):
        self.log("weights", self.layer.weight.sum())

    def on_after_backward(self):
        self.log("gradient", self.layer.weight.grad.sum(), on_step=True, on_epoch=True)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("ended", outputs["loss"], on_step=True)

    def on_train_epoch_end(self):
        self.log("epoch", self.current_epoch)


class Loaders(Linear):
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        loss = self.layer(batch).square().mean()
        self.log("val", loss)
        self.log("step", loss, on_step=True, on_epoch=True)
        self.log(f"alone_{dataloader_idx}", loss * (1 + dataloader_idx), add_dataloader_idx=False)
        if dataloader_idx == 1:
            self.log("second", batch_idx, reduce_fx="sum")

    def val_dataloader(self):
        return [self.train_dataloader(), torch.utils.data.DataLoader(torch.ones(6, 4), batch_size=2)]


class Prefixed(Levels):
    """Has a `log` of its own, which is called once for each value."""

    def log(self, name, value, **options):
        super().log(f"mine/{name}", value, **options)


def fit(cls, accelerator, root, **options):
    L.seed_everything(1, verbose=False)
    logger, rows = CSVLogger(root / accelerator), Rows()
    trainer = L.Trainer(accelerator=accelerator, devices=1, logger=logger, log_every_n_steps=2, callbacks=[rows],
                        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
                        **{"max_epochs": 2, **options})  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(cls())
    with open(logger.log_dir + "/metrics.csv") as file:
        header, *lines = [line.rstrip("\n").split(",") for line in file]
    written = [{k: float(v) for k, v in zip(header, line, strict=True) if v} for line in lines]
    return rows.rows, written


@pytest.mark.parametrize("cls", [Levels, Reductions, Hooks, Loaders, Prefixed])
@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 3}], ids=str)
def test_logs_equal_cpu(tmp_path, cls, options):
    (expected, right), (found, written) = (fit(cls, a, tmp_path, **options) for a in ("cpu", "csx"))
    for rows, truth in ((found, expected), (written, right)):
        assert len(rows) == len(truth) > 3
        for index, (row, true) in enumerate(zip(rows, truth, strict=True)):
            assert row == pytest.approx(true, rel=1e-5, abs=1e-6, nan_ok=True), index


def test_enable_graph_is_refused(tmp_path):
    class Keeps(Linear):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("loss", loss, enable_graph=True)
            return loss

    with pytest.raises(ValueError, match=r"self\.log\('loss', \.\.\., enable_graph=True\) cannot be used"):
        fit(Keeps, "csx", tmp_path)
