"""What a system in another process or on another host is sent: graphs, layouts of their inputs, settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from cstorch._torch_private.tracing import propagate
from cstorch.compiler.loops import loops_of
from cstorch.errors import BackendError
from cstorch.tracing.across_systems import COMBINE

assert COMBINE  # the operators are defined before a graph with them is read


@dataclass(frozen=True)
class _Ref:
    """Stands for a node among the arguments of another."""

    name: str


@dataclass(frozen=True)
class Layout:
    """Shape, strides and dtype of an input."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: torch.Tensor) -> Layout:
        """The layout of `tensor`."""
        return Layout(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def empty(self) -> torch.Tensor:
        """A tensor of this layout."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype)


@dataclass(frozen=True)
class Settings:
    """Settings of PyTorch that change what a program computes; the same in all processes."""

    threads: int
    deterministic: bool
    matmul_precision: str
    interpret: bool

    @staticmethod
    def now(interpret: bool) -> Settings:
        """Those of this process."""
        return Settings(
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            interpret,
        )

    def apply(self) -> None:
        """Make them those of this process."""
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        torch.use_deterministic_algorithms(self.deterministic)
        torch.set_float32_matmul_precision(self.matmul_precision)


def dumped(graph: fx.GraphModule) -> Any:
    """`graph` as an object that pickle takes; places in the user's code and fake tensors stay here."""
    nodes = [(n.op, n.name, _name_of(n.target), *_named((n.args, n.kwargs))) for n in graph.graph.nodes]
    constants = {n.target: getattr(graph, n.target) for n in graph.graph.find_nodes(op="get_attr")}
    within = {name: dumped(value) for name, value in constants.items() if isinstance(value, fx.GraphModule)}
    return nodes, {name: value for name, value in constants.items() if name not in within}, within


def loaded(dump: Any, inputs: Iterable[Layout]) -> fx.GraphModule:
    """The graph that was `dumped`, its nodes with tensors of the right shapes in `meta["val"]`.

    Args:
        dump: What `dumped` returned, in another process perhaps.
        inputs: The layout of each input.

    Raises:
        BackendError: it calls an operator that this process does not know.
    """
    module = _module(dump)
    for node, layout in zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True):
        node.meta["val"] = layout.empty()
    propagate(module)
    for loop in loops_of(module):
        _, _, carried, others = loop.node.args
        for node, outer in zip(loop.turn.graph.find_nodes(op="placeholder"), (*carried, *others), strict=True):  # type: ignore[misc]
            node.meta["val"] = outer.meta["val"]
        propagate(loop.turn)
    return module


def _module(dump: Any) -> fx.GraphModule:
    nodes, constants, loops = dump
    graph = fx.Graph()
    known: dict[str, fx.Node] = {}
    for op, own_name, target, args, kwargs in nodes:
        args, kwargs = _put_back((args, kwargs), known)
        if op == "output":
            graph.output(args[0])
            continue
        target = _target_of(target) if op == "call_function" else target
        known[own_name] = graph.create_node(op, target, args, kwargs, name=own_name)
    root = nn.Module()
    for key, value in constants.items():
        root.register_buffer(key, value)
    for key, within in loops.items():
        root.add_module(key, _module(within))
    return fx.GraphModule(root, graph)


def _named(value: Any) -> Any:
    ref: Any = lambda node: _Ref(node.name)  # noqa: E731
    return fx.map_arg(value, ref)


def _put_back(value: Any, known: dict[str, fx.Node]) -> Any:
    if isinstance(value, _Ref):
        return known[value.name]
    if isinstance(value, (list, tuple)):
        made = [_put_back(v, known) for v in value]
        return tuple(made) if isinstance(value, tuple) else made
    if isinstance(value, dict):
        return {k: _put_back(v, known) for k, v in value.items()}
    return value


def _name_of(target: Any) -> Any:
    if isinstance(target, torch._ops.HigherOrderOperator):
        return "higher_order::", target.name()
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}::{target._schema.name.split('::')[1]}", target._overloadname
    return target


def _target_of(name: Any) -> Any:
    if callable(name):
        return name
    (space, operation), overload = name[0].split("::"), name[1]
    if space == "higher_order":
        return getattr(torch.ops.higher_order, overload)
    try:
        return getattr(getattr(getattr(torch.ops, space), operation), overload)
    except AttributeError as error:
        raise BackendError(
            f"the program calls the operator {name[0]}, which the other systems do not know: they do not run your "
            "script. Start all with `torchrun ... train.py`, which does, or use num_csx=1."
        ) from error
