"""What a benchmark returns (`cerebras.pytorch.utils.benchmark.utils`)."""

from __future__ import annotations

from cstorch.utils.benchmark.utils import dataloader

__all__ = ["dataloader"]
