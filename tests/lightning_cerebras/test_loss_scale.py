"""`precision="16-mixed"`: the loss scale is part of the program and does what `torch.amp.GradScaler` does."""

import itertools
import warnings

import cstorch
import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lightning_cerebras import CSXPrecision

OVERFLOWS = (2, 3, 9)
"""Steps whose batch is so large that float16 gradients overflow."""


def batches():
    made = torch.randn(12, 8, 8, generator=torch.Generator().manual_seed(1))
    for step in OVERFLOWS:
        made[step] *= 1e5
    return made


class Net(L.LightningModule):
    def __init__(self, optimizer=None, clip=None):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        self.make = optimizer or (lambda p: torch.optim.Adam(p, lr=0.02))
        self.rows = []

    def loss(self, batch):
        out = self.net(batch)
        assert out.dtype == torch.float16
        return (out - batch[:, :4]).square().mean()

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        scaler = self.trainer.precision_plugin.scaler
        weights = torch.cat([p.detach().cpu().flatten() for p in self.parameters()])
        self.rows.append((float(self.trainer.callback_metrics["loss"]), scaler.state_dict(), weights))

    def configure_optimizers(self):
        optimizer = self.make(self.parameters())
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.95), "interval": "step"}]

    def train_dataloader(self):
        return DataLoader(batches(), batch_size=None)


SCALE = {"init_scale": 512.0, "growth_interval": 3}


def fit(module, callbacks=(), **options):
    L.seed_everything(1, verbose=False)
    module = module()
    plugin = CSXPrecision("16-mixed", **SCALE)
    options = {"max_epochs": 1, "logger": False, "enable_checkpointing": False, **options}
    ckpt_path = options.pop("ckpt_path", None)
    trainer = L.Trainer(accelerator="csx", plugins=plugin, enable_progress_bar=False, enable_model_summary=False,
                        callbacks=list(callbacks), **options)  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, ckpt_path=ckpt_path)
    return trainer, module


def eager(module, clip=None, accumulate=1):
    """The same training by hand: autocast and a GradScaler of torch on the cpu."""
    L.seed_everything(1, verbose=False)
    module = module()
    optimizer = module.make(module.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.95)
    scaler = torch.amp.GradScaler("cpu", **SCALE)
    rows = []
    for i, batch in enumerate(batches()):
        with torch.autocast("cpu", torch.float16):
            loss = module.loss(batch)
        scaler.scale(loss / accumulate).backward()
        if (i + 1) % accumulate == 0:
            scaler.unscale_(optimizer)
            if clip:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                scheduler.step()
        rows.append((loss.item(), scaler.state_dict(), torch.cat([p.detach().flatten() for p in module.parameters()])))
    return rows


def assert_same(found, expected):
    assert len(found) == len(expected)
    for (loss, state, weights), (eager_loss, eager_state, eager_weights) in zip(found, expected):
        assert loss == pytest.approx(eager_loss, rel=5e-3, nan_ok=True)
        assert state == eager_state
        torch.testing.assert_close(weights, eager_weights, rtol=5e-3, atol=5e-3)


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.02),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_step_is_that_of_a_grad_scaler(optimizer):
    def make():
        return Net(OPTIMIZERS[optimizer])

    _, module = fit(make)
    expected = eager(make)
    assert_same(module.rows, expected)
    scales = [state["scale"] for _, state, _ in expected]
    assert scales[1] > scales[3]  # it has shrunk
    assert max(b / a for a, b in itertools.pairwise(scales)) == 2  # and grown


def test_with_clipping_and_accumulation():
    _, module = fit(Net, gradient_clip_val=0.1, accumulate_grad_batches=2)
    assert_same(module.rows, eager(Net, clip=0.1, accumulate=2))


class Manual(Net):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = self.loss(batch)
        self.manual_backward(loss)
        optimizer.step()
        self.lr_schedulers().step()
        self.log("loss", loss)


def test_manual_optimization():
    _, module = fit(Manual)
    assert_same(module.rows, eager(Net))


def test_the_scale_is_saved_as_on_every_accelerator_and_goes_on(tmp_path):
    checkpoint = L.pytorch.callbacks.ModelCheckpoint(tmp_path, every_n_epochs=1, save_top_k=-1)
    _, whole = fit(Net, [checkpoint], enable_checkpointing=True, max_epochs=2)
    path = next(tmp_path.glob("epoch=0*.ckpt"))
    saved = torch.load(path)
    assert saved["MixedPrecision"] == whole.rows[11][1]
    assert "CSXPrecision" not in saved
    torch.amp.GradScaler("cpu").load_state_dict(saved["MixedPrecision"])
    _, resumed = fit(Net, ckpt_path=path, max_epochs=2)
    assert [row[1] for row in resumed.rows] == [row[1] for row in whole.rows[12:]]


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1), "makes its state 'momentum_buffer'"),
        (lambda p: Counting(p, {"lr": 0.1, "count": 0}), "counts in numbers"),
    ],
)
def test_what_cannot_be_taken_back_is_refused(make, what):
    with pytest.raises(cstorch.errors.OptimizerError, match=f"{what}.*bfloat16"):
        fit(lambda: Net(make))


class Counting(torch.optim.Optimizer):
    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] += 1
            for p in group["params"]:
                p.data.add_(p.grad, alpha=-group["lr"])


def test_half_weights_are_refused():
    class Half(Net):
        def configure_optimizers(self):
            self.half()
            return super().configure_optimizers()

        def loss(self, batch):
            return self.net(batch.half()).float().square().mean()

    with pytest.raises(cstorch.errors.OptimizerError, match=r"float16 parameter.*Keep the parameters in float32"):
        fit(Half)
