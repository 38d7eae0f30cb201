"""Data loading, its benchmark, TensorBoard, profiling, and small tools (`cerebras.pytorch.utils`)."""

from __future__ import annotations

import importlib
from typing import Any

from cstorch.utils import call_once, data, kernel, nest, num_kv_groups, profiler, tracker
from cstorch.utils.cs_config import CSConfig

__all__ = [
    "CSConfig",
    "benchmark",
    "call_once",
    "data",
    "kernel",
    "nest",
    "num_kv_groups",
    "profiler",
    "tensorboard",
    "tracker",
    "utils",
]


def __getattr__(name: str) -> Any:
    if name in ("benchmark", "tensorboard", "utils"):  # tensorboard takes a second to import: not before it is used
        return importlib.import_module(f"cstorch.utils.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
