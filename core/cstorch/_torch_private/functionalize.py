"""PyTorch's private surface for making a graph functional: no operator of it changes memory, but at its end (2.13)."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import fx
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx

from cstorch._torch_private.tracing import Propagate

__all__ = ["functional"]

_KEPT = "custom"  # the one entry of `meta` that PyTorch hands on from a node to those that are made of it


def functional(graph: fx.GraphModule) -> fx.GraphModule:
    """`graph` as one that writes to its inputs at the end only, by `copy_`, and to nothing else.

    Args:
        graph: A flat graph whose nodes have their fake tensors in `meta["val"]`.

    Returns:
        Another graph of the same inputs and outputs. Its nodes have their fake tensors, and what else the nodes that
        they come from had in `meta`.
    """
    like = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    marked = fx.GraphModule(graph, fx.Graph())
    known: dict[fx.Node, fx.Node] = {}
    marked.graph.output(marked.graph.graph_copy(graph.graph, known))
    marked = fx.GraphModule(graph, marked.graph)
    for before, node in known.items():
        node.meta = {_KEPT: {name: value for name, value in before.meta.items() if name != "val"}}

    def run(*inputs: torch.Tensor) -> Any:
        with fx_traceback.preserve_node_meta():
            return fx.Interpreter(marked).run(*inputs)

    with torch.no_grad():
        made: fx.GraphModule = make_fx(torch.func.functionalize(run))(*like)
    for node in made.graph.nodes:
        node.meta = {**node.meta.get(_KEPT, {}), **({"val": node.meta["val"]} if "val" in node.meta else {})}
    for before, node in zip(
        graph.graph.find_nodes(op="placeholder"), made.graph.find_nodes(op="placeholder"), strict=True
    ):
        node.meta["val"] = before.meta["val"]
    made.graph.eliminate_dead_code()
    _show_views(made, like)
    return made


def _show_views(graph: fx.GraphModule, like: list[Any]) -> None:
    """Work out the fake tensors again, so that views share the memory of what they are views of."""
    modes = [value.fake_mode for value in like]
    with modes[0] if modes else contextlib.nullcontext(), torch.no_grad():
        Propagate(graph).run(*like)
