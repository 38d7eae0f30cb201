"""The graph of a step without in-place changes and views, in PyTorch's core operators.

XLA's values never change. So what the step changes in place becomes an output: the new state. PyTorch does this
(`torch.func.functionalize`), and breaks operators into those of its core set as it goes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten


@dataclass(frozen=True)
class FunctionalGraph:
    """A graph that changes nothing.

    Attributes:
        graph: Takes what the step's graph takes; returns its outputs, then the new contents of changed inputs.
        outputs: How many outputs the step has.
        changed: The positions of the changed inputs, in the order in which their new contents follow the outputs.
    """

    graph: fx.GraphModule
    outputs: int
    changed: tuple[int, ...]


def is_random(target: Any) -> bool:
    """Whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's own, all but those of random operators: they draw as eager PyTorch draws when they stay whole."""
    table = torch.export.default_decompositions()
    return {target: rule for target, rule in table.items() if not is_random(target)}


def functional(graph: fx.GraphModule, example: list[torch.Tensor]) -> FunctionalGraph:
    """The functional form of `graph`.

    Args:
        graph: The graph of a step. It is not changed.
        example: Inputs with the shapes and dtypes of the real ones. They are not read.
    """
    spoken = _say_what_batch_norm_changes(graph)
    run = torch.func.functionalize(lambda *inputs: tuple(spoken(*inputs)), remove="mutations_and_views")
    with torch.no_grad():
        found = make_fx(run, _decompositions(), "fake", _allow_non_fake_inputs=True)(*example)
    places = {node: place for place, node in enumerate(found.graph.find_nodes(op="placeholder"))}
    new: dict[int, fx.Node] = {}
    for node in found.graph.find_nodes(op="call_function", target=aten.copy_.default):
        target, source = node.args[:2]
        assert target in places, "functionalized graphs copy into their inputs only"
        new[places[target]] = source
        found.graph.erase_node(node)
    (end,) = found.graph.find_nodes(op="output")
    (outputs,) = end.args
    end.args = ((*outputs, *new.values()),)
    found.graph.eliminate_dead_code(lambda node: is_random(node.target) or node.op in ("placeholder", "output"))
    found.recompile()
    return FunctionalGraph(found, len(outputs), tuple(new))


def _say_what_batch_norm_changes(graph: fx.GraphModule) -> fx.GraphModule:
    """Name the form of batch norm whose schema says that it changes the running statistics: the usual one hides it."""
    copied = fx.GraphModule(graph, fx.Graph())
    copied.graph.output(copied.graph.graph_copy(graph.graph, {}))
    for node in copied.graph.find_nodes(op="call_function", target=aten.native_batch_norm.default):
        if node.args[3] is None:
            node.target = aten._native_batch_norm_legit.no_stats
            node.args = (*node.args[:3], *node.args[5:])
        else:
            node.target = aten._native_batch_norm_legit.default
    copied.recompile()
    return copied
