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
    """A copy of `graph` that can be rewritten, with the graphs of its loops."""
    nodes = fx.Graph()
    nodes.output(nodes.graph_copy(graph.graph, {}))
    copied = fx.GraphModule(graph, nodes)
    for name, within in graph.named_children():
        if isinstance(within, fx.GraphModule):
            setattr(copied, name, copy_graph(within))
    return copied


def prepare(graph: fx.GraphModule) -> fx.GraphModule:
    """A copy of `graph` after all passes, which the graphs of its loops go through too."""
    copied = copy_graph(graph)
    for within in graphs_of(copied):
        for rewrite in PASSES:
            rewrite(within)
        within.recompile()
    return copied


def graphs_of(graph: fx.GraphModule) -> list[fx.GraphModule]:
    """`graph` and the graphs of its loops."""
    return [module for module in graph.modules() if isinstance(module, fx.GraphModule)]
