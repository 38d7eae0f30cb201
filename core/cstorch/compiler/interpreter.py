"""Runs a program node by node with PyTorch's own kernels: no compiler needed, results as eager's."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx


class InterpretedExecutable:
    """An executable that interprets the graph.

    Args:
        graph: The program's graph.

    Attributes:
        runs: How often it has run.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        self._graph = graph
        self.runs = 0

    def __call__(self, inputs: list[Any]) -> list[torch.Tensor]:
        """Run the graph once."""
        self.runs += 1
        with torch.no_grad():
            return list(self._graph(*inputs))
