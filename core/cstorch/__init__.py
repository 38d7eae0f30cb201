"""cstorch: PyTorch training steps traced once, compiled whole and replayed, under the Cerebras programming model.

This module is the public API, name for name that of `cerebras.pytorch`. To read the code, follow one batch:
`utils/data/executor.py`, `tracing/step.py`, `compiler/compile.py`, `appliance/local.py`, then the closures in
`tracing/closures.py`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import cstorch.device as _device  # registers the torch device "csx"  # noqa: F401
from cstorch import backend, backends, core, distributed, errors, storage, utils
from cstorch.backend import Backend, current_backend, current_torch_device, use_cs
from cstorch.compiled_module import compile  # noqa: A004
from cstorch.creation import full, full_like, make_constant, ones, ones_like, zeros, zeros_like
from cstorch.debug_names import add_debug_name, get_debug_name
from cstorch.legacy import advice_on, manual_seed
from cstorch.name_scope import name_scope
from cstorch.numpy_conversion import from_numpy, to_numpy
from cstorch.precision_levels import current_pol, pol
from cstorch.storage import load, save
from cstorch.summaries import summarize_scalar, summarize_tensor
from cstorch.tracing.closures import checkpoint_closure, step_closure
from cstorch.utils.data.executor import current_executor

if TYPE_CHECKING:
    from cstorch import amp, constraints, experimental, metrics, nn, optim, plugins, profiler, saver, sparse, testing
    from cstorch.tracing.step import trace

__version__ = "0.1.0"
_generating_docs = False
"""Programs ask whether their documentation is being made: no."""

__all__ = [
    "Backend",
    "__version__",
    "add_debug_name",
    "amp",
    "backend",
    "backends",
    "checkpoint_closure",
    "compile",
    "constraints",
    "core",
    "current_backend",
    "current_executor",
    "current_pol",
    "current_torch_device",
    "distributed",
    "errors",
    "experimental",
    "from_numpy",
    "full",
    "full_like",
    "get_debug_name",
    "load",
    "make_constant",
    "manual_seed",
    "metrics",
    "name_scope",
    "nn",
    "ones",
    "ones_like",
    "optim",
    "plugins",
    "pol",
    "profiler",
    "save",
    "saver",
    "sparse",
    "step_closure",
    "storage",
    "summarize_scalar",
    "summarize_tensor",
    "testing",
    "to_numpy",
    "trace",
    "use_cs",
    "utils",
    "zeros",
    "zeros_like",
]


_ON_DEMAND = frozenset(  # needed by few programs
    (
        "amp",
        "constraints",
        "experimental",
        "metrics",
        "nn",
        "optim",
        "plugins",
        "profiler",
        "saver",
        "sparse",
        "testing",
    )
)


def __getattr__(name: str) -> Any:
    if name == "trace":  # what tracing needs of torch takes half a second to import: not before it is used
        value = importlib.import_module("cstorch.tracing.step").trace
        globals()["trace"] = value
        return value
    if name in _ON_DEMAND:
        return importlib.import_module(f"cstorch.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{advice_on(name)}")
