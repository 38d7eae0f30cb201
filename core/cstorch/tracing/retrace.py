"""Finds the first operation in which two traces of a step differ, for `debug.retrace_every_iteration`."""

from __future__ import annotations

import itertools
from typing import Any

from torch import fx

from cstorch.device import CsxTensor
from cstorch.errors import TraceError
from cstorch.tracing.program import Program


def compare(kept: Program, now: Program) -> None:
    """Check that a step is still the program that it became.

    Raises:
        TraceError: it is not; the first difference is named with both lines of the user's program.
    """
    difference = _graphs(kept, now) or _effects(kept, now)
    if difference is not None:
        raise TraceError(
            f"the step {kept.name!r} has another graph in this iteration than when it was traced: {difference}. "
            "A replay would have gone on with the first one. Let what varies come as an argument of the step, or as "
            "an attribute of a module that it reads; or set backends.csx.debug.retrace_every_iteration = False."
        )


def _graphs(kept: Program, now: Program) -> str | None:
    numbers: tuple[dict[fx.Node, int], dict[fx.Node, int]] = ({}, {})
    sources = tuple(_sources(program) for program in (kept, now))
    for position, pair in enumerate(itertools.zip_longest(kept.graph.graph.nodes, now.graph.graph.nodes)):
        old, new = (_Described(n, numbers[i], sources[i]) for i, n in enumerate(pair))
        if old.shape != new.shape:
            return f"operation {position} was {old.words} and is {new.words}"
        for known, node in zip(numbers, pair, strict=True):
            known[node] = position
    return None


def _sources(program: Program) -> list[Any]:
    return [id(t) if isinstance(t, CsxTensor) else "a host tensor" for t in program.state]


class _Described:
    """A node in a form that can be compared with that of another graph, and said."""

    def __init__(self, node: fx.Node | None, known: dict[fx.Node, int], sources: list[Any]) -> None:
        if node is None:
            self.shape: Any = None
            self.words = "not there"
            return
        value: Any = node.meta.get("val")
        meta = (tuple(value.shape), value.dtype) if hasattr(value, "dtype") else None
        arguments = fx.node.map_arg((node.args, node.kwargs), lambda n: f"%{known[n]}")
        if node.op == "placeholder":
            position = len(known)
            source = sources[position] if position < len(sources) else "an input"
            self.shape = (node.op, source, meta)
            self.words = f"an input {'' if meta is None else meta[0]}"
            return
        self.shape = (node.op, str(node.target), repr(arguments), meta)
        self.words = f"{node.target}{_brief(arguments)} at {node.meta.get('line', 'an unknown line')}"


def _brief(arguments: Any) -> str:
    args, kwargs = arguments
    said = [str(a) for a in args] + [f"{key}={value}" for key, value in kwargs.items()]
    return f"({', '.join(said)})"


def _effects(kept: Program, now: Program) -> str | None:
    old, new = (
        [(e.kind, getattr(e.function, "__qualname__", repr(e.function))) for e in program.effects]
        for program in (kept, now)
    )
    return None if old == new else f"the step closures it called were {old} and are {new}"
