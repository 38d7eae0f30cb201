"""Data loading, its benchmark, TensorBoard and profiling (`cerebras.pytorch.utils`)."""

from __future__ import annotations

import importlib
from typing import Any

from cstorch.utils import data, profiler

__all__ = ["benchmark", "data", "profiler", "tensorboard"]


def __getattr__(name: str) -> Any:
    if name in ("benchmark", "tensorboard"):  # tensorboard takes a second to import: not before it is used
        return importlib.import_module(f"cstorch.utils.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
