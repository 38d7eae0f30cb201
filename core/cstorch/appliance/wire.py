"""A program as bytes: what a system on another process or host needs to compile and run it."""

from __future__ import annotations

import operator
import pickle
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from cstorch._torch_private.tracing import propagate
from cstorch.errors import BackendError
from cstorch.tracing.across_systems import COMBINE
from cstorch.tracing.program import Program, bare_program

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


@dataclass(frozen=True)
class Shipped:
    """A program on its way to a system.

    Attributes:
        program: The program, with a graph, a name and passes only.
        inputs: The layout of every input of a system: state, arguments, numbers.
        state: So many of them are state.
        settings: How to compile and run it.
    """

    program: Program
    inputs: list[Layout]
    state: int
    settings: Settings

    def dumps(self) -> bytes:
        """As bytes."""
        graph = self.program.graph
        nodes = [(n.op, n.name, _name_of(n.target), *_named((n.args, n.kwargs))) for n in graph.graph.nodes]
        constants = {n.target: getattr(graph, n.target) for n in graph.graph.nodes if n.op == "get_attr"}
        return pickle.dumps(
            (nodes, constants, self.program.name, self.program.passes, self.inputs, self.state, self.settings)
        )

    @staticmethod
    def loads(data: bytes) -> Shipped:
        """Of bytes that `dumps` made.

        Raises:
            BackendError: the program calls an operator that this process does not know.
        """
        nodes, constants, name, passes, inputs, state, settings = pickle.loads(data)
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
        module = fx.GraphModule(root, graph)
        for node, layout in zip(graph.find_nodes(op="placeholder"), inputs, strict=True):
            node.meta["val"] = layout.empty()
        propagate(module)
        return Shipped(bare_program(module, name, passes), inputs, state, settings)


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
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}::{target._schema.name.split('::')[1]}", target._overloadname
    if target is operator.getitem:
        return "getitem"
    assert isinstance(target, str), f"a graph calls {target}, which is no operator"
    return target


def _target_of(name: Any) -> Any:
    if name == "getitem":
        return operator.getitem
    (space, operation), overload = name[0].split("::"), name[1]
    try:
        return getattr(getattr(getattr(torch.ops, space), operation), overload)
    except AttributeError as error:
        raise BackendError(
            f"the program calls the operator {name[0]}, which the other systems do not know: they do not run your "
            "script. Start all with `torchrun ... train.py`, which does, or use num_csx=1."
        ) from error
