"""Floating-point operations: of a program's graph, of what has run, and what this machine can do in a second."""

from __future__ import annotations

import functools
import time
import weakref
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

import cstorch.device.recurrent_layers  # noqa: F401  defines its operators
from cstorch.compiler.loops import with_loops

_aten = torch.ops.aten


def _recurrent(kind: str, gates: torch.Tensor, hidden: torch.Tensor, *_: Any, **__: Any) -> int:
    """Of the products of hidden states and weights; what the inputs contribute is a product of its own."""
    return 2 * gates.numel() * hidden.shape[-1]


def _recurrent_backward(kind: str, grad: torch.Tensor, *others: Any, **_: Any) -> int:
    return 2 * grad.numel() * int(others[-1].shape[0])


def _lstm(x: torch.Tensor, of_inputs: torch.Tensor, of_hidden: torch.Tensor, *_: Any, **__: Any) -> int:
    return 2 * x.shape[0] * x.shape[1] * (of_inputs.numel() + of_hidden.numel())


_FORMULAS = {
    **flop_registry,
    _aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[_aten._scaled_dot_product_flash_attention],
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        _aten._scaled_dot_product_flash_attention_backward
    ],
    torch.ops.cstorch.recurrent: _recurrent,
    torch.ops.cstorch.recurrent_backward: _recurrent_backward,
    torch.ops.cstorch.lstm: _lstm,
    torch.ops.cstorch.lstm_backward: lambda *given, **_: 2 * _lstm(*given),
}


def has_formula(node: fx.Node) -> bool:
    """Whether the floating-point operations of a node are counted."""
    return getattr(node.target, "overloadpacket", None) in _FORMULAS


def flops_of(node: fx.Node) -> int:
    """The floating-point operations of a node: of a matrix product, a convolution or attention; 0 for others."""
    formula = _FORMULAS.get(getattr(node.target, "overloadpacket", None))
    if formula is None:
        return 0
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    return int(formula(*args, **kwargs, out_val=node.meta["val"]))


def count_flops(graph: fx.GraphModule) -> int:
    """The floating-point operations of one run: those of matrix products, convolutions and attention.

    These are PyTorch's own formulas (`torch.utils.flop_counter`); other operations count nothing.

    Args:
        graph: A graph whose nodes carry the values of the trace (`meta["val"]`).
    """
    return sum(times * flops_of(node) for node, times in with_loops(graph))


class FlopMeter:
    """Adds up what the programs of a backend have computed, by the runs that their executables count."""

    def __init__(self) -> None:
        self._flops: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def add(self, executable: Any, graph: fx.GraphModule) -> None:
        """Watch an executable; one that counts no `runs` is left out."""
        if hasattr(executable, "runs"):
            self._flops[executable] = count_flops(graph)

    def total(self) -> int:
        """Floating-point operations of all runs of the executables that are still there."""
        return sum(executable.runs * flops for executable, flops in self._flops.items())


@functools.cache
def peak_flops() -> float:
    """Floating-point operations a second of a float32 matrix product here, measured once in a few milliseconds."""
    size = 768
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        factor = torch.full((size, size), 0.5)
        best = float("inf")
        for _ in range(4):
            start = time.perf_counter()
            torch.mm(factor, factor)
            best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
