"""lightning_cerebras: `Trainer(accelerator="csx")` for PyTorch Lightning.

Importing this package, or just PyTorch when the package is installed, makes the accelerator known to
`lightning.pytorch` and `pytorch_lightning`. The classes are those of the namespace that is imported:

CSXAccelerator, CSXStrategy, CSXParallelStrategy, CSXPrecision, CSXCheckpointIO, and the callbacks CompileProgress and
StepProfiler.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from lightning_cerebras import _autoload

__version__ = "0.1.0"

__all__ = [
    "CSXAccelerator",
    "CSXCheckpointIO",
    "CSXParallelStrategy",
    "CSXPrecision",
    "CSXStrategy",
    "CompileProgress",
    "StepProfiler",
    "__version__",
]

_autoload.install()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    mirror = "lightning.pytorch" not in sys.modules and "pytorch_lightning" in sys.modules
    module = "_bind_pytorch_lightning" if mirror else "_bind_lightning"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
