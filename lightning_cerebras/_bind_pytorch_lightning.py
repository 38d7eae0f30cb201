"""The classes of the csx accelerator for `pytorch_lightning`, at module level so that they can be pickled."""

from __future__ import annotations

from lightning_fabric.accelerators import ACCELERATOR_REGISTRY
from lightning_fabric.plugins import TorchCheckpointIO
from pytorch_lightning.accelerators import Accelerator, AcceleratorRegistry
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loops.optimization.automatic import Closure, _AutomaticOptimization
from pytorch_lightning.plugins.io.wrapper import _WrappingCheckpointIO
from pytorch_lightning.plugins.precision import Precision
from pytorch_lightning.strategies import ParallelStrategy, SingleDeviceStrategy, StrategyRegistry
from pytorch_lightning.strategies.launchers import _MultiProcessingLauncher, _SubprocessScriptLauncher
from pytorch_lightning.trainer.connectors.accelerator_connector import _AcceleratorConnector
from pytorch_lightning.utilities.exceptions import MisconfigurationException

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
