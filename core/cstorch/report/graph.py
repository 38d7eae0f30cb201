"""A program's graph as text that a person can read: one operation a line, under the line of the program it is from."""

from __future__ import annotations

import linecache
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from cstorch.compiler.loops import LOOP, loop_of
from cstorch.report.kinds import name_of
from cstorch.report.memory import tensors_of
from cstorch.report.names import layout_text

_WIDTH = 200


def source_of(line: str) -> str:
    """The text of a line of the user's program that is named `file.py:12`; empty where it cannot be had."""
    file, _, number = line.rpartition(":")
    return linecache.getline(file, int(number)).strip() if number.isdigit() else ""


def graph_lines(graph: fx.Graph, names: dict[fx.Node, str]) -> Iterator[str]:
    """The graph, input by input and operation by operation.

    Args:
        graph: A traced graph.
        names: What its placeholders stand for.
    """
    for node in graph.find_nodes(op="placeholder"):
        yield f"{node.name}: {_type(node)} = {names.get(node, 'an input')}"
    before = None
    for node in graph.nodes:
        if node.op == "output":
            yield f"\nreturn {_argument(node.args[0])}"
        elif node.op != "placeholder":
            line, scope = node.meta.get("line"), node.meta.get("scope")
            if line is not None and (line, scope) != before:
                before = line, scope
                yield f"\n# {f'[{scope}] ' if scope else ''}{line}  {source_of(line)}".rstrip()
            yield f"{node.name}: {_type(node)} = {_call(node)}"
            if node.target is LOOP:
                loop = loop_of(graph.owning_module, node)  # type: ignore[arg-type]
                yield f"    {loop.turns} times, carrying what comes first:"
                yield from (f"    {line}" for line in graph_lines(loop.turn.graph, {}))


def _type(node: fx.Node) -> str:
    found = tensors_of(node)
    if not found:
        return "?"
    many = isinstance(node.meta.get("val"), (tuple, list))
    words = ", ".join(map(layout_text, found))
    return f"({words})" if many else words


def _call(node: fx.Node) -> str:
    if node.op == "get_attr":
        return f"constant {node.target}"
    if node.target is operator.getitem:
        return f"{_argument(node.args[0])}[{node.args[1]}]"
    arguments = [_argument(value) for value in node.args]
    arguments += [f"{key}={_argument(value)}" for key, value in node.kwargs.items()]
    text = f"{name_of(node)}({', '.join(arguments)})"
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]} ..."


def _argument(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_argument, value))}]"
    if isinstance(value, torch.Tensor):
        return layout_text(value)
    return value.name if isinstance(value, fx.Node) else str(value).removeprefix("torch.")
