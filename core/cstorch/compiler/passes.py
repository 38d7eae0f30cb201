"""Rewrites of a traced graph before it is compiled; each a small function from graph to graph."""

from __future__ import annotations

import torch
from torch import fx

from cstorch.tracing.across_systems import COMBINE

aten = torch.ops.aten

_ALPHA = {aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.sub_.Tensor}


def spell_out_alpha(graph: fx.GraphModule) -> fx.GraphModule:
    """`add(a, b, alpha=c)` becomes `add(a, mul(b, c))`.

    Inductor 2.13 turns an add of a matrix product into addmm and loses alpha: plain SGD on a Linear layer
    would train silently wrong.
    """
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or node.target not in _ALPHA or node.kwargs.get("alpha", 1) == 1:
            continue
        kwargs = dict(node.kwargs)
        alpha = kwargs.pop("alpha")
        with graph.graph.inserting_before(node):
            scaled = graph.graph.call_function(aten.mul.Tensor, (node.args[1], alpha))
        node.args = (node.args[0], scaled)
        node.kwargs = kwargs
    graph.recompile()
    return graph


def lower_across_systems(graph: fx.GraphModule) -> fx.GraphModule:
    """What a program says of several systems becomes collectives."""
    if any(node.target in COMBINE for node in graph.graph.nodes):
        from cstorch.compiler.collectives import lower_collectives  # torch.distributed, which few programs need

        lower_collectives(graph)
    return graph


PASSES = (spell_out_alpha, lower_across_systems)
"""All passes, in order."""


def copy_graph(graph: fx.GraphModule) -> fx.GraphModule:
    """A copy of `graph` that can be rewritten."""
    copied = fx.GraphModule(graph, fx.Graph())
    copied.graph.output(copied.graph.graph_copy(graph.graph, {}))
    copied.recompile()
    return copied


def prepare(graph: fx.GraphModule) -> fx.GraphModule:
    """A copy of `graph` after all passes."""
    copied = copy_graph(graph)
    for rewrite in PASSES:
        copied = rewrite(copied)
    copied.recompile()
    return copied
