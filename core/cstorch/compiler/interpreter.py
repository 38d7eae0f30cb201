"""Runs a program node by node with PyTorch's own kernels: no compiler needed, results as eager's."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from cstorch.compiler.made import Made


class InterpretedExecutable:
    """An executable that interprets the graph.

    Args:
        graph: The program's graph.
        reason: Why it is interpreted, in words.

    Attributes:
        runs: How often it has run.
        made: How it was made, for reports.
    """

    def __init__(self, graph: fx.GraphModule, reason: str = "") -> None:
        self._graph = graph
        self.runs = 0
        self.made = Made("interpreted", reason=reason)

    def __call__(self, inputs: list[Any]) -> list[torch.Tensor]:
        """Run the graph once."""
        self.runs += 1
        with torch.no_grad():
            return list(self._graph(*inputs))
