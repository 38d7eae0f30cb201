"""Runs a program node by node with PyTorch's own kernels: no compiler needed, results as eager's."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx


class InterpretedExecutable:
    """An executable that interprets the graph.

    Args:
        graph: The program's graph.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        self._graph = graph

    def __call__(self, inputs: list[Any]) -> list[torch.Tensor]:
        """Run the graph once."""
        with torch.no_grad():
            return list(self._graph(*inputs))
