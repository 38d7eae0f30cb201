"""Fits in a process for each system; each leaves what it saw in the folder it is told, by strategy and rank."""

import json
import os
import sys
import warnings
from pathlib import Path

import cstorch
import lightning as L
import torch
from cstorch.errors import BackendError
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, OnExceptionCheckpoint
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lightning_cerebras import CSXParallelStrategy

warnings.simplefilter("ignore")


class Module(L.LightningModule):
    """Logs with and without sync_dist, and notes which samples it got."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)  # the first process's values must win
        self.net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
        self.rows, self.samples = [], []

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("own", loss)
        self.log("all", loss, sync_dist=True, on_step=True, on_epoch=True)
        self.log("gathered", self.all_gather(loss).sum())
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.samples.append(round(float(batch[0].sum()), 3))
        names = ("own", "all_step", "gathered")
        self.rows.append([float(self.trainer.callback_metrics[name]) for name in names])

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.net(x), y), sync_dist=True)

    def on_validation_end(self):
        values = self.all_gather(torch.tensor([float(self.global_rank), 1.0]))
        self.rows.append([*values[:, 0].tolist(), float(self.trainer.callback_metrics["val_loss"])])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def data(count, seed):
    source = torch.Generator().manual_seed(seed)
    x, y = torch.randn(count, 6, generator=source), torch.randint(4, (count,), generator=source)
    return TensorDataset(x, y)


def fit(folder, ckpt_path=None, **options):
    """One fit; what this process saw."""
    L.seed_everything(5, verbose=False)
    module = Module()
    best = ModelCheckpoint(folder, monitor="val_loss", save_top_k=2, filename="{step}", save_on_train_epoch_end=False)
    stop = EarlyStopping("val_loss", check_on_train_epoch_end=False)
    trainer = L.Trainer(
        max_epochs=2, logger=False, enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=0.5,
        accumulate_grad_batches=2, callbacks=[best, stop], **options,
    )  # fmt: skip
    shuffled = DataLoader(data(48, 1), batch_size=4, shuffle=True)
    trainer.fit(module, shuffled, DataLoader(data(16, 2), batch_size=4), ckpt_path=ckpt_path)
    state = {name: value.cpu().flatten().tolist() for name, value in module.state_dict().items()}
    return {
        "strategy": type(trainer.strategy).__name__,
        "world": trainer.world_size,
        "sampler": type(trainer.train_dataloader.sampler).__name__,
        "rows": module.rows,
        "samples": module.samples,
        "state": state,
        "global_step": trainer.global_step,
        "best": os.path.basename(best.best_model_path),
        "files": sorted(os.listdir(folder)),
    }


def forked(folder):
    """A fit in processes that are copies of this one, which gets weights and metrics back from the first of them."""
    module = Module()
    before = [p.detach().clone() for p in module.parameters()]
    best = ModelCheckpoint(folder, monitor="val_loss", filename="{step}")
    trainer = L.Trainer(
        accelerator="csx", strategy=CSXParallelStrategy(start_method="fork"), devices=2, max_epochs=1, logger=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[best],
    )  # fmt: skip
    trainer.fit(module, DataLoader(data(16, 1), batch_size=4), DataLoader(data(16, 2), batch_size=4))
    assert not all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert Path(best.best_model_path).name == "step=2.ckpt"
    assert {"own", "all", "val_loss"} <= trainer.callback_metrics.keys()


class Notes:
    """What a callback or a datamodule is told of the end of a run."""

    def __init__(self):
        super().__init__()
        self.told = []

    def on_exception(self, *args):
        self.told.append("exception")

    def teardown(self, *args, **kwargs):
        self.told.append("teardown")


class NotingCallback(Notes, L.Callback):
    pass


class NotingData(Notes, L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(data(16, 1), batch_size=4)


def as_systems(file):
    """A fit whose other processes are systems of the first one."""
    callback, datamodule = NotingCallback(), NotingData()
    trainer = L.Trainer(
        accelerator="csx", strategy="csx", max_epochs=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=file.parent,
        callbacks=[callback, OnExceptionCheckpoint(file.parent / "exception")],
    )  # fmt: skip
    try:
        trainer.fit(Module(), datamodule=datamodule)
    finally:
        found = {"callback": callback.told, "datamodule": datamodule.told, "step": trainer.global_step}
        file.write_text(json.dumps(found))


def different_programs():
    """What a process says that is about to run another program than the others, and one whose weights are others."""
    said = []
    with cstorch.backend("CSX", peers=True) as backend:
        model = nn.Linear(3, 2)
        compiled = cstorch.compile(model, backend)

        @cstorch.trace
        def step(x, more):
            (compiled(x).mean() + more).backward()

        with torch.no_grad():
            model.weight.add_(dist.get_rank())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @cstorch.trace
        def update(x):
            compiled(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        update(torch.ones(2, 3))
        x = torch.ones(2, 3)
        for attempt in (backend.check_systems, lambda: step(x, 0.0) if dist.get_rank() else update(x)):
            try:
                attempt()
            except BackendError as error:
                said.append(str(error))
    return said


def left_alone(leave):
    """What a process says whose peer has ended; in the other, `leave` does not return."""
    with cstorch.backend("CSX", peers=True) as backend:
        model = nn.Linear(3, 2)
        compiled = cstorch.compile(model, backend)
        step = cstorch.trace(lambda x: compiled(x).mean().backward())
        step(torch.ones(2, 3))
        if dist.get_rank() == 1:
            leave()
        try:
            step(torch.ones(2, 3))
        except BackendError as error:
            return str(error)
    return ""


if __name__ == "__main__":
    out, way = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    if way == "fork":
        forked(out / "forked")
        sys.exit()
    if way == "systems":
        as_systems(out / f"{way}-{os.environ['RANK']}.json")
        sys.exit()
    if way == "script":
        options = {"accelerator": "csx", "strategy": "csx_parallel", "devices": 2}
    else:
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        options = {"accelerator": "csx", "num_nodes": int(os.environ["WORLD_SIZE"]) // here}
    found = {"csx": fit(out / "csx", **options)}
    if way == "torchrun":
        cpu = {"accelerator": "cpu", "strategy": "ddp", "devices": here, "num_nodes": options["num_nodes"]}
        found["ddp"] = fit(out / "ddp", **cpu)
        found["csx resumed"] = fit(out / "csx", ckpt_path=out / "csx" / "step=3.ckpt", **options)
        found["ddp resumed"] = fit(out / "ddp", ckpt_path=out / "ddp" / "step=3.ckpt", **cpu)
        found["said"] = different_programs()

    def write():
        (out / f"{way}-{dist.get_rank()}.json").write_text(json.dumps(found))

    def leave():
        write()
        os._exit(0)

    if way == "torchrun":
        found["alone"] = left_alone(leave)
    write()
