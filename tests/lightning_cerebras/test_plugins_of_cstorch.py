"""What plugins of cstorch bring reaches a Trainer through CSXStrategy."""

import csv

import cstorch
import lightning as L
import pytest
import torch
from cstorch import plugins
from cstorch.appliance import Appliance
from cstorch.appliance.local import LocalAppliance
from cstorch.backends.base import Backend, BackendType
from cstorch.backends.cpu_backend import CpuBackend
from cstorch.device import CSX
from cstorch.distributed import ClusterConfig
from cstorch.utils.profiler import Activity
from lightning.pytorch.callbacks import DeviceStatsMonitor
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_cerebras import CSXStrategy, StepProfiler


class Interprets(Backend):
    """A backend of a plugin."""

    backend_type = BackendType.CSX

    def __init__(self, compile_dir=None):
        super().__init__(CSX, compile_dir=compile_dir)

    def load(self, program, example):
        run = LocalAppliance().load(program, example, self.compile_dir)

        def counted(inputs):
            RUNS.append("backend")
            return run(inputs)

        return counted


class Elsewhere(Appliance):
    def load(self, program, example, compile_dir):
        run = LocalAppliance().load(program, example, compile_dir)

        def counted(inputs):
            RUNS.append("appliance")
            return run(inputs)

        return counted


class Samples(Activity):
    def __init__(self):
        self.batches, self.samples = 0, 0

    @classmethod
    def name(cls):
        return "samples_seen"

    def update(self, batch_size):
        self.batches, self.samples = self.batches + 1, self.samples + batch_size

    def compute(self):
        return {"batches": self.batches, "samples": self.samples, "words": "not a number"}


class Plugin:
    @plugins.hookimpl
    def cstorch_register_backends(self, registry):
        registry.register("interprets", Interprets)
        registry.register("as-is", CpuBackend)

    @plugins.hookimpl
    def cstorch_register_profiler_activities(self, registry):
        registry.register(Samples)

    @plugins.hookimpl
    def cstorch_connect_appliance(self, mgmt_address):
        return Elsewhere() if mgmt_address == "elsewhere://" else None


RUNS = []


@pytest.fixture(autouse=True)
def plugin():
    RUNS.clear()
    plugins.reset()
    plugins.register(Plugin())
    yield
    plugins.reset()


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def fit(accelerator="csx", **options):
    torch.manual_seed(0)
    model = Model()
    data = DataLoader(TensorDataset(torch.randn(12, 4)), batch_size=4)
    trainer = L.Trainer(accelerator=accelerator, max_epochs=2, enable_checkpointing=False, enable_progress_bar=False,
                        **{"logger": False, "log_every_n_steps": 1, **options})  # fmt: skip
    trainer.fit(model, data)
    return trainer, [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize(
    ("options", "ran"),
    [
        ({"backend": "interprets"}, "backend"),
        ({"cluster_config": ClusterConfig(mgmt_address="elsewhere://")}, "appliance"),
    ],
)
def test_a_trainer_runs_on_what_a_plugin_brings(compile_cache, options, ran):
    _, found = fit(strategy=CSXStrategy(compile_dir=compile_cache, **options))
    assert [ran] * 6 == RUNS
    torch.testing.assert_close(found, fit("cpu")[1])
    assert cstorch.current_backend(raise_exception=False, raise_warning=False) is None


def test_activities_count_batches_and_are_logged(compile_cache, tmp_path):
    strategy = CSXStrategy(compile_dir=compile_cache, profiler_activities=["samples_seen"])
    fit(strategy=strategy, callbacks=[DeviceStatsMonitor()], logger=CSVLogger(tmp_path))
    assert strategy.profiler.samples_seen == {"batches": 6, "samples": 24, "words": "not a number"}
    (logged,) = tmp_path.rglob("metrics.csv")
    header, *rows = logged.read_text().splitlines()
    column = next(
        i for i, name in enumerate(header.split(",")) if name.endswith("on_train_batch_end/csx.samples_seen.samples")
    )
    seen = [float(row.split(",")[column]) for row in rows if row.split(",")[column]]
    assert seen == [0, 4, 8, 12, 16, 20]
    assert "words" not in header


@pytest.mark.parametrize("accelerator", ["cpu", "csx"])
def test_the_step_profiler_measures_on_every_accelerator(accelerator, tmp_path):
    measures = StepProfiler(["samples_seen"])
    fit(accelerator, callbacks=[measures], logger=CSVLogger(tmp_path), log_every_n_steps=2)
    assert measures.profiler.samples_seen == {"batches": 6, "samples": 24, "words": "not a number"}
    assert measures.profiler.rate_tracker.total_samples == 24
    (logged,) = tmp_path.rglob("metrics.csv")
    rows = [row for row in csv.DictReader(logged.open()) if row["csx.samples_seen.samples"]]
    assert [(int(row["step"]), float(row["csx.samples_seen.samples"])) for row in rows] == [(1, 8), (3, 16), (5, 24)]
    assert all(float(row["csx.samples_per_sec"]) > 0 for row in rows)


def test_names_that_cannot_be_used(compile_cache):
    with pytest.raises(ValueError, match="backend_type is 'nothing', expected one of CSX, CPU, GPU, INTERPRETS, AS-IS"):
        fit(strategy=CSXStrategy(backend="nothing"))
    with pytest.raises(ValueError, match=r"backend='as-is'\) names a backend that runs steps as they are"):
        fit(strategy=CSXStrategy(backend="as-is"))
    assert cstorch.current_backend(raise_exception=False, raise_warning=False) is None
    with pytest.raises(ValueError, match="no profiler activity 'nothing'; registered are: samples_seen"):
        fit(strategy=CSXStrategy(compile_dir=compile_cache, profiler_activities=["nothing"]))
    with pytest.raises(ValueError, match="no profiler activity 'nothing'; registered are: samples_seen"):
        fit("cpu", callbacks=[StepProfiler(["nothing"])])
