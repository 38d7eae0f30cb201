"""Data loading, TensorBoard and profiling (`cerebras.pytorch.utils`)."""

from __future__ import annotations

import importlib
from typing import Any

from cstorch.utils import data, profiler

__all__ = ["data", "profiler", "tensorboard"]


def __getattr__(name: str) -> Any:
    if name == "tensorboard":  # tensorboard takes a second to import: not before it is used
        return importlib.import_module("cstorch.utils.tensorboard")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
