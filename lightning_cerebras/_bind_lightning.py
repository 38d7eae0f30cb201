"""The classes of the csx accelerator for `lightning.pytorch`, at module level so that they can be pickled."""

from __future__ import annotations

from lightning.fabric.accelerators import ACCELERATOR_REGISTRY
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loops.optimization.automatic import Closure, _AutomaticOptimization
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import ParallelStrategy, SingleDeviceStrategy, StrategyRegistry
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher, _SubprocessScriptLauncher
from lightning.pytorch.trainer.connectors.accelerator_connector import _AcceleratorConnector
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lightning_cerebras._bind import bind
from lightning_cerebras._core import fabric
from lightning_cerebras._core.accelerator import CSXAcceleratorMixin
from lightning_cerebras._core.activities import StepProfilerMixin
from lightning_cerebras._core.checkpoint_io import CSXCheckpointIOMixin
from lightning_cerebras._core.closure import StepClosure
from lightning_cerebras._core.compile_progress import CompileProgressMixin
from lightning_cerebras._core.parallel import CSXParallelMixin
from lightning_cerebras._core.precision import CSXPrecisionMixin
from lightning_cerebras._core.strategy import CSXStrategyMixin


class CSXPrecision(CSXPrecisionMixin, Precision):  # type: ignore[misc]
    """Precision on csx: "32-true", "bf16-mixed", "16-mixed" or "bf16-true"."""


class CSXCheckpointIO(CSXCheckpointIOMixin, TorchCheckpointIO):  # type: ignore[misc]
    """Writes checkpoints with `cstorch.save`."""


class CSXClosure(StepClosure, Closure):  # type: ignore[misc]
    """The optimizer closure, an instance of Lightning's own class too."""


class CSXStrategy(CSXStrategyMixin, SingleDeviceStrategy):  # type: ignore[misc]
    """Runs every kind of step as a traced program."""

    precision_class = CSXPrecision
    checkpoint_io_class = CSXCheckpointIO
    wrapping_io_class = _WrappingCheckpointIO
    closure_class = CSXClosure


class CSXParallelStrategy(CSXParallelMixin, CSXStrategyMixin, ParallelStrategy):  # type: ignore[misc]
    """One process for each system: gradients are averaged within the program."""

    precision_class = CSXPrecision
    checkpoint_io_class = CSXCheckpointIO
    wrapping_io_class = _WrappingCheckpointIO
    closure_class = CSXClosure
    script_launcher_class = _SubprocessScriptLauncher
    process_launcher_class = _MultiProcessingLauncher


class CSXAccelerator(CSXAcceleratorMixin, Accelerator):  # type: ignore[misc]
    """The accelerator "csx"."""

    strategy_classes = (CSXStrategy, CSXParallelStrategy)
    misconfiguration = MisconfigurationException


class CompileProgress(CompileProgressMixin, Callback):  # type: ignore[misc]
    """A callback that says when a step becomes a program."""


class StepProfiler(StepProfilerMixin, Callback):  # type: ignore[misc]
    """A callback that measures training steps with the activities of cstorch's plugins."""


fabric.register(ACCELERATOR_REGISTRY)
bind(
    _AcceleratorConnector,
    AcceleratorRegistry,
    StrategyRegistry,
    CSXAccelerator,
    CSXStrategy,
    CSXParallelStrategy,
    CSXPrecision,
    _AutomaticOptimization,
    MisconfigurationException,
)
