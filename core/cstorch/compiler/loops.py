"""Loops within a graph: a node that runs a graph of its own a known number of times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx

LOOP = torch.ops.higher_order.while_loop
"""The operator: its arguments are the graph of whether it goes on, that of a turn, what is carried and the rest."""


@dataclass(frozen=True)
class Loop:
    """One loop.

    Attributes:
        node: The node in the graph around it.
        turn: The graph of one turn. Its first input counts the turns.
        turns: How many there are.
    """

    node: fx.Node
    turn: fx.GraphModule
    turns: int


def loops_of(graph: fx.GraphModule) -> list[Loop]:
    """The loops of a graph."""
    return [loop_of(graph, node) for node in graph.graph.find_nodes(op="call_function", target=LOOP)]


def loop_of(graph: fx.GraphModule, node: fx.Node) -> Loop:
    """The loop that `node` of `graph` runs."""
    goes_on, turn = (getattr(graph, str(arg.target)) for arg in node.args[:2] if isinstance(arg, fx.Node))
    (condition,) = goes_on.graph.find_nodes(op="call_function", target=torch.ops.aten.lt.Scalar)
    return Loop(node, turn, condition.args[1])


def with_loops(graph: fx.GraphModule) -> Iterator[tuple[fx.Node, int]]:
    """The nodes of a graph and of its loops, each with how often it runs."""
    loops = {loop.node: loop for loop in loops_of(graph)}
    for node in graph.graph.nodes:
        yield node, 1
        if node in loops:
            for within in loops[node].turn.graph.nodes:
                yield within, loops[node].turns
