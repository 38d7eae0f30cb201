"""Random numbers that a step draws on the host with PyTorch: drawn there for the trace, and by the program at each run.

`x + torch.rand(x.shape)` draws on the cpu. The draw, and what is computed from it on the cpu, runs as always and is
recorded beside; where it meets a csx tensor the recorded value is used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from cstorch._torch_private.tracing import mutated_arguments
from cstorch.device import CsxTensor
from cstorch.where import user_line

aten = torch.ops.aten


class HostDraws:
    """The draws of one trace.

    Args:
        recorder: The trace.
    """

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._handles: dict[int, CsxTensor] = {}
        self._keep: list[Any] = []
        self._nodes: list[fx.Node] = []
        self._lines: dict[fx.Node, str] = {}
        self.frozen: list[str] = []

    def handle(self, tensor: torch.Tensor) -> CsxTensor | None:
        """What stands for a host tensor that is drawn, or computed from a draw."""
        return self._handles.get(id(tensor))

    def repeat(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Record `func`, which is about to run on the host, if it draws or uses what was drawn; its results."""
        leaves = pytree.tree_leaves((args, kwargs))
        draws = torch.Tag.nondeterministic_seeded in func.tags
        if not draws and not any(id(leaf) in self._handles for leaf in leaves):
            return None
        if func is aten._local_scalar_dense.default:
            return None
        if any(isinstance(leaf, torch.Generator) for leaf in leaves):
            self.frozen.append(user_line())
            return None
        before = set(self._recorder.graph.nodes)
        for tensor in mutated_arguments(func, args, kwargs):
            if isinstance(tensor, torch.Tensor) and id(tensor) not in self._handles:
                self._follow(tensor, self._recorder.record(aten.clone.default, (self._input(tensor.clone()),), {}))
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda t: self._handles[id(t)] if id(t) in self._handles else self._input(t), (args, kwargs)
        )
        made = self._recorder.record(func, args, kwargs)
        fresh = [n for n in self._recorder.graph.nodes if n not in before and n.op == "call_function"]
        self._nodes += fresh
        self._lines.update((n, user_line()) for n in fresh if draws and n.target is func)  # none in a repetition
        return made

    def _input(self, tensor: torch.Tensor) -> CsxTensor:
        known: CsxTensor = self._recorder.host_input(tensor)
        self._recorder._handles.pop(id(tensor), None)  # the host goes on computing with it
        self._keep.append(tensor)
        return known

    def _follow(self, tensor: torch.Tensor, handle: CsxTensor) -> None:
        self._handles[id(tensor)] = handle
        self._keep.append(tensor)

    def follow(self, results: Any, made: Any) -> None:
        """`made` stands for `results`, which the host has computed."""
        for tensor, handle in zip(pytree.tree_leaves(results), pytree.tree_leaves(made), strict=True):
            if isinstance(tensor, torch.Tensor):
                self._follow(tensor, handle)

    def prune(self) -> bool:
        """Take out of the graph what no csx tensor met; whether any draw is left."""
        for node in reversed(self._nodes):
            if not node.users:
                self._recorder.graph.erase_node(node)
                if node in self._lines:
                    self.frozen.append(self._lines.pop(node))
        return bool(self._lines)
