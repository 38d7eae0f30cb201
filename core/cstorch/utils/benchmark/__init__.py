"""Benchmarks of dataloaders (`cerebras.pytorch.utils.benchmark`)."""

from __future__ import annotations

from cstorch.utils.benchmark import utils
from cstorch.utils.benchmark.measure import benchmark_dataloader

__all__ = ["benchmark_dataloader", "utils"]
