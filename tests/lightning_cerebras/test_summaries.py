"""`cstorch.summarize_scalar` and `summarize_tensor` in the modules of a Trainer reach its loggers."""

import csv
from pathlib import Path

import cstorch
import lightning as L
import pytest
import torch
from cstorch.tracing.context import context
from cstorch.utils.tensorboard import SummaryReader
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from modules import Linear


class Layer(torch.nn.Linear):
    def forward(self, x):
        out = super().forward(x)
        cstorch.summarize_scalar("out/mean", out.mean())
        cstorch.summarize_tensor("out/whole", out)
        return out


class Summarizes(Linear):
    def __init__(self, manual):
        super().__init__()
        self.automatic_optimization = not manual
        self.layer = Layer(4, 2)
        self.seen = {"training": [], "validation": []}

    def training_step(self, batch, batch_idx):
        out = self.layer(batch)
        loss = out.square().mean()
        if not self.automatic_optimization:
            self.optimizers().zero_grad()
            self.manual_backward(loss)
            self.optimizers().step()
        self.seen["training"].append(out.detach())
        self.log("mean", out.mean())
        return loss

    def validation_step(self, batch, batch_idx):
        self.seen["validation"].append(self.layer(batch))

    def val_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(4, 4), batch_size=2)


def fit(tmp_path, logger, manual=False, **options):
    module = Summarizes(manual)
    trainer = L.Trainer(accelerator="csx", max_epochs=2, logger=logger, log_every_n_steps=2, enable_progress_bar=False,
                        enable_checkpointing=False, enable_model_summary=False, default_root_dir=tmp_path,
                        **options)  # fmt: skip
    trainer.fit(module)
    return module


@pytest.mark.parametrize("manual", [False, True])
def test_scalars_and_tensors_are_beside_the_logs_of_a_tensorboard_logger(tmp_path, manual):
    logger = TensorBoardLogger(tmp_path)
    module = fit(tmp_path, logger, manual)
    reader = SummaryReader(logger.log_dir)
    logged = [(scalar.step, scalar.value) for scalar in reader.read_scalar("mean")]
    assert [(scalar.step, scalar.value) for scalar in reader.read_scalar("out/mean")] == logged
    assert [step for step, _ in logged] == [1, 3, 5, 7]
    kept = reader.read_tensor("out/whole", latest_only=False)
    assert sorted(kept) == [1, 3, 5, 7]
    for step, (tensor,) in kept.items():
        assert torch.equal(tensor.tensor, module.seen["training"][step].cpu())
    outputs = module.seen["validation"][-4:]  # after those of the sanity check
    validated = reader.read_scalar("validate/out/mean")
    assert [scalar.value for scalar in validated] == pytest.approx([float(out.mean()) for out in outputs])
    assert [scalar.step for scalar in validated] == [0, 1, 2, 3]
    assert context.summaries is None


def test_scalars_are_rows_of_a_csv_logger(tmp_path):
    logger = CSVLogger(tmp_path)
    module = fit(tmp_path, logger)
    with open(Path(logger.log_dir) / "metrics.csv") as file:
        rows = {int(row["step"]): float(row["out/mean"]) for row in csv.DictReader(file) if row.get("out/mean")}
    assert rows == pytest.approx({step: float(module.seen["training"][step].mean()) for step in (1, 3, 5, 7)})


@pytest.mark.parametrize("options", [{"logger": False}, {"logger": True, "fast_dev_run": 2}], ids=str)
def test_without_a_logger_nothing_is_written(tmp_path, options):
    fit(tmp_path, **options)
    assert not [path for path in tmp_path.rglob("*") if path.name != "compile_cache" and "tensors" in path.parts]
