"""What other packages bring to a Trainer, with stand-ins for the packages: loggers, exporters, plugins, launchers."""

import socket
import sys
import types
from unittest import mock

import lightning as L
import pytest
import torch
from lightning.fabric.plugins.environments import mpi
from lightning.fabric.plugins.precision import bitsandbytes, transformer_engine
from lightning.pytorch import loggers, plugins
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.core import module as core_module
from lightning.pytorch.loggers import comet, mlflow, wandb
from lightning.pytorch.plugins import environments
from lightning.pytorch.trainer.connectors import callback_connector
from lightning_utilities.core.rank_zero import rank_zero_only
from modules import Linear, fit

from lightning_cerebras import CSXParallelStrategy, CSXStrategy

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "max_epochs": 1}


def stand_in(monkeypatch, *names):
    """A recorder in the place of each module; the first of them."""
    made = [mock.MagicMock(name=name) for name in names]
    for name, module in zip(names, made, strict=True):
        monkeypatch.setitem(sys.modules, name, module)
    return made[0]


# -- loggers ---------------------------------------------------------------------------------------------------


class Run:
    """What is logged to; the attribute `log` keeps it."""

    def __init__(self):
        self.log = self.log_metrics = self.__internal_api__log_metrics__ = mock.Mock()

    def __getattr__(self, name):
        return mock.MagicMock()


def with_wandb(monkeypatch):
    package = stand_in(monkeypatch, "wandb", "wandb.sdk", "wandb.sdk.lib", "wandb.wandb_run")
    sys.modules["wandb.wandb_run"].Run, sys.modules["wandb.sdk.lib"].RunDisabled = Run, type("RunDisabled", (), {})
    monkeypatch.setattr(wandb, "_WANDB_AVAILABLE", True)
    package.run, package.init = None, lambda **options: Run()
    logger = loggers.WandbLogger()
    return logger, lambda: [call.args[0] for call in logger.experiment.log.call_args_list]


def with_mlflow(monkeypatch):
    names = ("mlflow", "mlflow.tracking", "mlflow.entities", "mlflow.utils", "mlflow.utils.mlflow_tags")
    stand_in(monkeypatch, *names, "mlflow.tracking.context", "mlflow.tracking.context.registry")
    monkeypatch.setattr(mlflow, "_MLFLOW_AVAILABLE", True)
    sys.modules["mlflow.entities"].Metric = types.SimpleNamespace
    client = sys.modules["mlflow.tracking"].MlflowClient.return_value
    return loggers.MLFlowLogger(), lambda: [
        {metric.key: metric.value, "step": metric.step}
        for call in client.log_batch.call_args_list
        for metric in call.kwargs.get("metrics", ())
    ]


def with_comet(monkeypatch):
    package = stand_in(monkeypatch, "comet_ml")
    monkeypatch.setattr(comet, "_COMET_AVAILABLE", True)
    run = Run()
    package.start.return_value = package.Experiment.return_value = package.OfflineExperiment.return_value = run
    return loggers.CometLogger(save_dir="comet"), lambda: [
        {**call.args[0], "step": call.kwargs["step"], "epoch": call.kwargs["epoch"]} for call in run.log.call_args_list
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [with_wandb, with_mlflow, with_comet])
def test_loggers_are_told_the_values_of_the_cpu(tmp_path, monkeypatch, make):
    told = []
    for accelerator in ("cpu", "csx"):
        with monkeypatch.context() as patch:
            logger, rows = make(patch)
            fit(accelerator, tmp_path / accelerator, logger=logger, log_every_n_steps=2)
            told.append(rows())
    assert len(told[1]) == len(told[0]) > 4
    for csx, cpu in zip(told[1], told[0], strict=True):
        assert csx == pytest.approx(cpu, rel=1e-5)
        assert {type(value) for value in csx.values()} <= {float, int}


# -- the registry of models, and ONNX --------------------------------------------------------------------------


def test_a_model_registry_gets_checkpoints_that_plain_torch_reads(tmp_path, monkeypatch):
    class Uploads(ModelCheckpoint):
        sent = []

        def __init__(self, model_registry):
            super().__init__(tmp_path)
            self.registry = model_registry

        def _save_checkpoint(self, trainer, filepath):
            super()._save_checkpoint(trainer, filepath)
            self.sent.append((self.registry, torch.load(filepath, weights_only=True)["state_dict"]))

    module = Linear()
    if not hasattr(L.Trainer(**QUIET), "_model_registry"):
        with pytest.raises(TypeError, match="model_registry"):
            L.Trainer(accelerator="csx", model_registry="org/model", **QUIET)
        return
    stand_in(monkeypatch, "litmodels.integrations.checkpoints").LightningModelCheckpoint = Uploads
    monkeypatch.setattr(callback_connector, "RequirementCache", lambda *args: True)
    L.Trainer(accelerator="csx", model_registry="org/model:v1", default_root_dir=tmp_path, **QUIET).fit(module)
    ((registry, state),) = Uploads.sent
    assert registry == "org/model"
    torch.testing.assert_close(state, dict(module.state_dict()))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_trained_module_is_given_to_onnx_on_the_host(tmp_path, monkeypatch):
    class Shown(Linear):
        example_input_array = torch.ones(3, 4)

        def forward(self, x):
            return self.layer(x)

    def export(module, sample, path, **options):
        sample = sample if isinstance(sample, torch.Tensor) else sample[0]
        tensors = [sample, *module.state_dict().values()]
        assert {(type(t), t.device.type) for t in tensors} == {(torch.Tensor, "cpu")}
        torch.jit.trace(module, sample).save(path)

    module = Shown()
    L.Trainer(accelerator="csx", enable_checkpointing=False, **QUIET).fit(module)
    monkeypatch.setattr(core_module, "_ONNX_AVAILABLE", True)
    monkeypatch.setattr(torch.onnx, "export", export)
    module.to_onnx(tmp_path / "module.onnx")
    read = torch.jit.load(tmp_path / "module.onnx")
    torch.testing.assert_close(read(torch.ones(3, 4)), module(torch.ones(3, 4)))


# -- plugins ---------------------------------------------------------------------------------------------------


def test_precision_plugins_of_other_devices_are_refused(monkeypatch):
    monkeypatch.setattr(bitsandbytes, "_import_bitsandbytes", lambda: None)
    for name in ("_NF4Linear", "_NF4DQLinear", "_FP4Linear", "_FP4DQLinear", "_Linear8bitLt", "_Int8LinearInference"):
        monkeypatch.setitem(vars(bitsandbytes), name, torch.nn.Linear)
    monkeypatch.setattr(transformer_engine, "_TRANSFORMER_ENGINE_AVAILABLE", True)
    recipe = "transformer_engine.common.recipe"
    stand_in(monkeypatch, recipe, "transformer_engine", "transformer_engine.common")
    for plugin in (
        plugins.BitsandbytesPrecision("nf4"),
        plugins.TransformerEnginePrecision(weights_dtype=torch.bfloat16),
    ):
        name = type(plugin).__name__
        with pytest.raises(ValueError, match=f"got the precision plugin {name}.*'16-mixed' or 'bf16-true'"):
            L.Trainer(accelerator="csx", plugins=plugin)


class Communicator:
    """What a process of rank 1 of two knows of MPI."""

    def Get_size(self):
        return 2

    def Get_rank(self):
        return 1

    def bcast(self, value, root):
        return {list: [socket.gethostname()], int: 29511}.get(type(value), value)

    def gather(self, value, root):
        return None

    def Split(self, color, key=0):
        return self


def under_mpi(monkeypatch, folder):
    package = stand_in(monkeypatch, "mpi4py")
    package.MPI.COMM_WORLD = Communicator()
    monkeypatch.setattr(mpi, "_MPI4PY_AVAILABLE", True)
    return {"devices": 2}


def under_lsf(monkeypatch, folder):
    (folder / "ranks").write_text(f"launcher\n{socket.gethostname()}\n{socket.gethostname()}\n")
    variables = {"LSB_JOBID": "1234", "LSB_DJOB_RANKFILE": str(folder / "ranks"), "JSM_NAMESPACE_SIZE": "2"}
    variables |= {"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_LOCAL_RANK": "1", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return {"devices": 2}


def under_kubeflow(monkeypatch, folder):
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512", "WORLD_SIZE": "2", "RANK": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return {"plugins": environments.KubeflowEnvironment(), "num_nodes": 2, "devices": 1}


@pytest.mark.parametrize(
    ("launched", "environment"),
    [(under_mpi, "MPIEnvironment"), (under_lsf, "LSFEnvironment"), (under_kubeflow, "KubeflowEnvironment")],
)
def test_processes_that_were_launched_together_take_a_system_each(tmp_path, monkeypatch, launched, environment):
    monkeypatch.setattr(rank_zero_only, "rank", 0)  # the strategy tells it the rank of this process
    run = L.Trainer(accelerator="csx", **launched(monkeypatch, tmp_path), **QUIET)
    assert type(run.strategy) is CSXParallelStrategy
    assert type(run.strategy.cluster_environment).__name__ == environment
    assert run.strategy.cluster_environment.creates_processes_externally
    assert (run.world_size, run.global_rank) == (2, 1)
    assert run.strategy.distributed_sampler_kwargs == {"num_replicas": 2, "rank": 1}


def test_a_kubeflow_environment_without_its_variables_is_one_process(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    run = L.Trainer(accelerator="csx", plugins=environments.KubeflowEnvironment(), **QUIET)
    assert type(run.strategy) is CSXStrategy
