"""`Trainer(precision=...)` on csx computes in the dtypes that it does on the cpu, with the same results."""

import warnings

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
        self.seen = []

    def training_step(self, batch, batch_idx):
        out = self.net(batch)
        made = torch.zeros(1, device=self.device)
        self.dtypes = (out.dtype, made.dtype, batch.dtype, self.net[0].weight.dtype)
        loss = (out.float() - batch[:, :4].float()).square().mean()
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen.append(float(self.trainer.callback_metrics["loss"]))

    def validation_step(self, batch, batch_idx):
        self.log("val", self.net(batch).float().square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)

    def train_dataloader(self):
        return DataLoader(torch.randn(48, 8, generator=torch.Generator().manual_seed(1)), batch_size=8)

    val_dataloader = train_dataloader


def fit(accelerator, precision):
    L.seed_everything(1, verbose=False)
    module = Net()
    trainer = L.Trainer(accelerator=accelerator, devices=1, precision=precision, logger=False, max_epochs=2,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module)
    return trainer, module


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "bf16"])
def test_precision_equals_cpu(precision):
    (cpu_trainer, cpu), (csx_trainer, csx) = (fit(a, precision) for a in ("cpu", "csx"))
    assert csx.dtypes == cpu.dtypes
    tolerance = 1e-5 if precision == "32-true" else 0.02
    assert csx.seen == pytest.approx(cpu.seen, rel=tolerance)
    for name, value in cpu.state_dict().items():
        found = csx.state_dict()[name]
        assert found.dtype == value.dtype
        torch.testing.assert_close(found, value, rtol=tolerance, atol=tolerance)
    metrics = [{k: float(v) for k, v in t.callback_metrics.items()} for t in (csx_trainer, cpu_trainer)]
    assert metrics[0] == pytest.approx(metrics[1], rel=tolerance)
    assert (csx.dtypes[0] == torch.float32) == (precision == "32-true")
