"""How `accelerator="csx"` finds its strategy, precision and checkpoint IO, and that nothing falls back silently."""

import os
import pickle
import subprocess
import sys

import lightning as L
import pytest
from lightning.pytorch import plugins
from lightning.pytorch.plugins import AsyncCheckpointIO, MixedPrecision
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lightning_cerebras import CSXAccelerator, CSXCheckpointIO, CSXParallelStrategy, CSXPrecision, CSXStrategy


def parts(trainer):
    return [
        type(p)
        for p in (trainer.accelerator, trainer.strategy, trainer.precision_plugin, trainer.strategy.checkpoint_io)
    ]


OURS = [CSXAccelerator, CSXStrategy, CSXPrecision, CSXCheckpointIO]


@pytest.mark.parametrize(
    "make",
    [
        lambda: L.Trainer(accelerator="csx"),
        lambda: L.Trainer(accelerator="csx", strategy="csx"),
        lambda: L.Trainer(accelerator=CSXAccelerator()),
        lambda: L.Trainer(accelerator="csx", devices=1, precision="32-true"),
        lambda: L.Trainer(accelerator="csx", devices="auto", precision=32),
        lambda: L.Trainer(accelerator="csx", strategy=CSXStrategy(compile_dir="x")),
    ],
)
def test_all_parts_are_chosen(make):
    assert parts(make()) == OURS


def test_the_environment_variable(monkeypatch):
    monkeypatch.setenv("PL_TRAINER_ACCELERATOR", "csx")
    assert parts(L.Trainer()) == OURS


def test_the_command_line():
    from lightning.pytorch.cli import LightningCLI
    from lightning.pytorch.demos.boring_classes import BoringModel

    arguments = ["--trainer.accelerator=csx", "--trainer.logger=false", "--trainer.devices=1"]
    assert parts(LightningCLI(BoringModel, run=False, args=arguments).trainer) == OURS


def test_cpu_trainers_are_untouched():
    assert type(L.Trainer(accelerator="cpu").strategy).__name__ == "SingleDeviceStrategy"
    assert type(L.Trainer(accelerator="auto").accelerator).__name__ != "CSXAccelerator"


@pytest.mark.parametrize(
    "options",
    [
        {"accelerator": "csx", "strategy": "ddp"},
        {"accelerator": "csx", "strategy": "ddp_notebook"},
        {"accelerator": "csx", "strategy": SingleDeviceStrategy("cpu")},
        {"accelerator": "cpu", "strategy": "csx"},
        {"accelerator": "cpu", "strategy": CSXParallelStrategy()},
    ],
)
def test_wrong_pairs_are_refused(options):
    with pytest.raises(MisconfigurationException, match="do not go together"):
        L.Trainer(**options)


def test_a_wrong_strategy_is_caught_at_the_latest_in_setup():
    trainer = L.Trainer(accelerator="csx")
    trainer._accelerator_connector.strategy = L.Trainer(accelerator="cpu").strategy
    with pytest.raises(MisconfigurationException, match="would train on the host without the compiled step"):
        CSXAccelerator().setup(trainer)


@pytest.mark.parametrize(
    ("precision", "why"),
    [("16-true", "bf16-true"), ("64-true", "32 bits"), ("transformer-engine", "another device")],
)
def test_other_precisions_are_refused_by_name(precision, why):
    with pytest.raises(ValueError, match=f"precision='{precision}'.*{why}.*'32-true', .*'16-mixed', 'bf16-true'"):
        L.Trainer(accelerator="csx", precision=precision)


@pytest.mark.parametrize(
    "plugin",
    [
        MixedPrecision("bf16-mixed", "cpu"),
        plugins.HalfPrecision("bf16-true"),
        plugins.DoublePrecision(),
        plugins.FSDPPrecision("bf16-mixed"),
        plugins.DeepSpeedPrecision("bf16-mixed"),
    ],
    ids=lambda plugin: type(plugin).__name__,
)
def test_other_precision_plugins_are_refused(plugin):
    name = type(plugin).__name__
    with pytest.raises(ValueError, match=f"got the precision plugin {name}.*'16-mixed' or 'bf16-true'"):
        L.Trainer(accelerator="csx", plugins=plugin)


def test_other_layer_syncs_are_refused():
    class Own(plugins.LayerSync):
        apply = revert = None

    with pytest.raises(MisconfigurationException, match="got the plugin Own, which changes layers"):
        L.Trainer(accelerator="csx", plugins=Own())


def test_no_devices():
    with pytest.raises(MisconfigurationException, match=r"`Trainer\(devices=0\)` value is not a valid input"):
        L.Trainer(accelerator="csx", devices=0)


@pytest.mark.parametrize("devices", [-2, [0], "0,1"])
def test_devices(devices):
    with pytest.raises(ValueError, match="with accelerator='csx'"):
        L.Trainer(accelerator="csx", devices=devices)


def test_several_nodes_are_refused():
    for strategy in ("auto", "csx"):
        with pytest.raises(MisconfigurationException, match=r"num_nodes=2.*torchrun.*csx_parallel"):
            L.Trainer(accelerator="csx", strategy=strategy, num_nodes=2)
    assert type(L.Trainer(accelerator="csx", strategy="csx_parallel", num_nodes=2).strategy) is CSXParallelStrategy


def test_an_environment_given_without_its_launcher_is_one_process(monkeypatch):
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    assert parts(L.Trainer(accelerator="csx", plugins=SLURMEnvironment(auto_requeue=False))) == OURS


def test_a_wrapping_checkpoint_io_gets_ours_inside():
    trainer = L.Trainer(accelerator="csx", plugins=AsyncCheckpointIO())
    assert type(trainer.strategy.checkpoint_io) is AsyncCheckpointIO
    assert type(trainer.strategy.checkpoint_io.checkpoint_io) is CSXCheckpointIO


def test_classes_can_be_pickled():
    assert pickle.loads(pickle.dumps(CSXStrategy)) is CSXStrategy
    assert type(pickle.loads(pickle.dumps(CSXPrecision()))) is CSXPrecision
    assert type(pickle.loads(pickle.dumps(L.Trainer(accelerator="csx"))).strategy) is CSXStrategy


def python(code, **environment):
    env = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("namespace", ["lightning.pytorch", "pytorch_lightning"])
@pytest.mark.parametrize("explicit", [False, True])
def test_both_namespaces_with_and_without_an_import(namespace, explicit):
    code = f"""
{"import lightning_cerebras" if explicit else ""}
import importlib, logging
pl = importlib.import_module("{namespace}")
trainer = pl.Trainer(accelerator="csx", logger=False, enable_checkpointing=False)
strategy = trainer.strategy
print(type(strategy).__module__, type(strategy).__name__, isinstance(strategy, pl.strategies.Strategy))
"""
    autoload = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} if explicit else {}
    module = "_bind_lightning" if namespace == "lightning.pytorch" else "_bind_pytorch_lightning"
    assert python(code, **autoload)[-3:] == [f"lightning_cerebras.{module}", "CSXStrategy", "True"]


def test_importing_torch_neither_imports_cstorch_nor_registers_the_device():
    assert python("import torch, sys; print('cstorch' in sys.modules, hasattr(torch, 'csx'))") == ["False", "False"]


def test_cpu_trainers_neither_import_cstorch_nor_register_the_device():
    code = "import sys, torch, lightning as L; L.Trainer(accelerator='cpu', logger=False); "
    assert python(code + "print('cstorch' in sys.modules, hasattr(torch, 'csx'))")[-2:] == ["False", "False"]


def test_an_untested_lightning_is_named_on_use_and_not_at_import():
    code = """
import lightning as L
import lightning.pytorch.loops.optimization.automatic as a
del a._AutomaticOptimization._make_closure
import lightning_cerebras
L.Trainer(accelerator="cpu", logger=False)
try:
    L.Trainer(accelerator="csx", logger=False)
except Exception as error:
    print("_AutomaticOptimization._make_closure" in str(error))
"""
    assert python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")[-1] == "True"


@pytest.mark.parametrize(
    ("namespace", "fabric"), [("lightning.pytorch", "lightning.fabric"), ("pytorch_lightning", "lightning_fabric")]
)
def test_fabric_says_what_to_use(namespace, fabric):
    code = f"""
import {namespace}
from {fabric} import Fabric
try:
    Fabric(accelerator="csx")
except NotImplementedError as error:
    print("@cstorch.trace" in str(error))
"""
    assert python(code)[-1] == "True"
