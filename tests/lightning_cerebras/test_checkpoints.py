"""Checkpoints of csx Trainers: both formats, read by either, and runs that go on in the middle of an epoch."""

import warnings

import cstorch
import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_cerebras import CSXCheckpointIO


class Remembers:
    """Batches in an order of their own; goes on where it was."""

    def __init__(self):
        self.next = 0

    def __iter__(self):
        while self.next < 6:
            self.next += 1
            yield torch.randn(4, 4, generator=torch.Generator().manual_seed(self.next))
        self.next = 0

    def __len__(self):
        return 6

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))

    def training_step(self, batch, batch_idx):
        loss = (self.net(batch) - batch[:, :2]).square().mean() * (1 + 0.1 * self.global_step)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30)
        return [optimizer], [{"scheduler": cycle, "interval": "step"}]

    def train_dataloader(self):
        return Remembers()


class ManualNet(Net):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        if batch_idx % 2:
            self.optimizers().step()
            self.optimizers().zero_grad()
            self.lr_schedulers().step()


def fit(accelerator, root, cls=Net, steps=15, ckpt_path=None, plugins=None):
    L.seed_everything(1, verbose=False)
    saves = ModelCheckpoint(root, filename="{step}", every_n_train_steps=4, save_top_k=-1)
    module = cls()
    trainer = L.Trainer(accelerator=accelerator, devices=1, max_epochs=-1, max_steps=steps, logger=False,
                        callbacks=[saves], plugins=plugins, enable_progress_bar=False,
                        enable_model_summary=False)  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, ckpt_path=ckpt_path)
    return trainer, module


@pytest.mark.skipif(
    L.__version__.startswith("2.4"), reason="Lightning 2.4 numbers batches and epochs anew, on every accelerator"
)
@pytest.mark.parametrize("cls", [Net, ManualNet])
@pytest.mark.parametrize("kind", ["cstorch", "torch"])
def test_going_on_in_the_middle_of_an_epoch_is_bit_equal(tmp_path, cls, kind):
    plugins = [CSXCheckpointIO(format=kind)]
    straight = fit("csx", tmp_path / "a", cls, plugins=plugins)
    resumed = fit("csx", tmp_path / "b", cls, ckpt_path=tmp_path / "a" / "step=4.ckpt", plugins=plugins)
    assert resumed[0].global_step == straight[0].global_step == 15
    for name, value in straight[1].state_dict().items():
        assert torch.equal(resumed[1].state_dict()[name], value), name
    last = [torch.load(tmp_path / run / "step=12.ckpt", weights_only=True) for run in "ab"]
    assert last[0]["loops"] == last[1]["loops"]
    assert last[0]["lr_schedulers"] == last[1]["lr_schedulers"]
    states = [c["optimizer_states"][0]["state"] for c in last]
    torch.testing.assert_close(states[1], states[0], rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["cstorch", "torch"])
@pytest.mark.parametrize("then", ["cpu", "csx"])
def test_either_format_is_read_everywhere(tmp_path, kind, then):
    _, module = fit("csx", tmp_path, steps=4, plugins=[CSXCheckpointIO(format=kind)])
    path = tmp_path / "step=4.ckpt"
    loaded = Net.load_from_checkpoint(path, map_location="cpu")
    for name, value in module.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
    resumed = fit(then, tmp_path / "b", steps=8, ckpt_path=path)
    truth = fit("cpu", tmp_path / "c", steps=8)
    for name, value in truth[1].state_dict().items():
        torch.testing.assert_close(resumed[1].state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_the_torch_format_is_lightning_s_own(tmp_path):
    fit("csx", tmp_path / "csx", steps=4, plugins=[CSXCheckpointIO(format="torch")])
    fit("cpu", tmp_path / "cpu", steps=4)
    files = [torch.load(tmp_path / a / "step=4.ckpt", weights_only=True) for a in ("csx", "cpu")]
    assert files[0].keys() == files[1].keys()
    assert files[0]["loops"] == files[1]["loops"]
    assert [(tmp_path / a / "step=4.ckpt").read_bytes()[:2] for a in ("csx", "cpu")] == [b"PK", b"PK"]
    assert {t.device.type for t in files[0]["state_dict"].values()} == {"cpu"}


def same(a, b):
    """Whether two states are equal, container by container; a lazy dict is a dict."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b.cpu())
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


class NetOfParameters(Net):
    def __init__(self, width=8, name="net", extra=None):
        super().__init__()
        self.save_hyperparameters()


def test_the_whole_checkpoint_is_the_same_in_both_readers(tmp_path):
    trainer, _ = fit("csx", tmp_path, NetOfParameters, steps=8)
    path = tmp_path / "step=8.ckpt"
    plain = torch.load(path, weights_only=True)
    dumped = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    assert set(plain) == set(dumped) >= {"loops", "callbacks", "optimizer_states", "lr_schedulers", "hyper_parameters"}
    assert plain["loops"]["fit_loop"]["state_dict"]["combined_loader"] == [{"next": 2}]
    assert dict(plain["hyper_parameters"]) == {"width": 8, "name": "net", "extra": None}
    for location in (None, "cache", "cpu"):
        assert same(plain, cstorch.load(path, location)), location
    assert same(plain["optimizer_states"], cstorch.load(path, "csx")["optimizer_states"])


def test_another_format_is_refused():
    with pytest.raises(ValueError, match=r"format='zip'\): expected 'cstorch' or 'torch'"):
        CSXCheckpointIO(format="zip")
