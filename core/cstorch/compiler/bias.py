"""Adds the bias of a matrix product in the kernel that follows the product, instead of copying it beforehand."""

from __future__ import annotations

import torch
from torch import fx

from cstorch.compiler import realize  # noqa: F401  defines the operator cstorch::realize


def unfuse_bias(graph: fx.GraphModule) -> fx.GraphModule:
    """A matrix product with a bias becomes the product, and an addition that fuses into what follows.

    PyTorch's addmm first copies the bias into every row and then has the product read it back.

    Args:
        graph: A traced graph whose nodes have their fake tensors in `meta["val"]`. It is changed.
    """
    for node in list(graph.graph.nodes):
        if node.target is not torch.ops.aten.addmm.default or node.kwargs:
            continue
        bias, left, right = node.args
        value = bias.meta.get("val")
        if value is None or value.dim() != 1 or value.dtype != node.meta["val"].dtype:
            continue
        with graph.graph.inserting_before(node):
            product = graph.graph.call_function(torch.ops.aten.mm.default, (left, right))
            product.meta["val"] = node.meta["val"]
            kept = graph.graph.call_function(torch.ops.cstorch.realize.default, (product,))
            kept.meta["val"] = node.meta["val"]
            added = graph.graph.call_function(torch.ops.aten.add.Tensor, (kept, bias))
        added.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(added)
        graph.graph.erase_node(node)
    graph.recompile()
    return graph
