"""Adds the bias of a matrix product in the kernel that follows the product, instead of copying it beforehand."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from cstorch.compiler import realize  # noqa: F401  defines the operator cstorch::realize

_PRODUCTS: dict[Any, Any] = {
    torch.ops.aten.addmm.default: torch.ops.aten.mm.default,
    torch.ops.aten.baddbmm.default: torch.ops.aten.bmm.default,
}


def unfuse_bias(graph: fx.GraphModule) -> fx.GraphModule:
    """A matrix product with a bias becomes the product, and an addition that fuses into what follows.

    PyTorch's addmm first copies the bias into every row and then has the product read it back. Of complex numbers
    every such product is taken apart: compiled programs cannot call PyTorch's with its default factors (torch 2.13).

    Args:
        graph: A traced graph whose nodes have their fake tensors in `meta["val"]`. It is changed.
    """
    for node in list(graph.graph.nodes):
        product_of = _PRODUCTS.get(node.target)
        if product_of is None:
            continue
        bias, left, right = node.args
        value, result = bias.meta.get("val"), node.meta["val"]
        if value is None or value.dtype != result.dtype:
            continue
        if not result.is_complex() and (node.kwargs or value.dim() != 1 or product_of is not torch.ops.aten.mm.default):
            continue

        def add(target: Any, *args: Any, value: Any = result) -> fx.Node:
            made = graph.graph.call_function(target, args)
            made.meta["val"] = value
            return made

        with graph.graph.inserting_before(node):
            product = add(torch.ops.cstorch.realize.default, add(product_of, left, right))
            if node.kwargs.get("alpha", 1) != 1:
                product = add(torch.ops.aten.mul.Tensor, product, node.kwargs["alpha"])
            if node.kwargs.get("beta", 1) != 1:
                bias = add(torch.ops.aten.mul.Tensor, bias, node.kwargs["beta"], value=value)
            added = add(torch.ops.aten.add.Tensor, product, bias)
        node.replace_all_uses_with(added)
        graph.graph.erase_node(node)
    graph.recompile()
    return graph
