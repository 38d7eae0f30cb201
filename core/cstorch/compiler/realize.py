"""Keeps scalar arithmetic out of inner loops: Inductor would compute AdamW's powers again for every few elements.

A bias correction is a 0-d tensor. Inductor inlines what computes it into each kernel that uses it, where
`std::pow` then runs once for every eight weights. The operator `cstorch::realize` is the identity; its lowering
makes the value a buffer, computed once.
"""

from __future__ import annotations

import torch
from torch import fx

_library = torch.library.Library("cstorch", "DEF")
_library.define("realize(Tensor x) -> Tensor")
_library.impl("realize", lambda x: x.clone(), "CompositeExplicitAutograd")

_LARGE = 1024  # elements; below, the scalar is cheaper to compute again than to load


def _value(node: fx.Node) -> torch.Tensor | None:
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def _is_fresh(node: fx.Node) -> bool:
    """Whether `node` makes a tensor of its own that nothing changes afterwards."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if any(result.alias_info is not None for result in node.target._schema.returns):
        return False
    return not any(
        isinstance(user.target, torch._ops.OpOverload) and user.target._schema.is_mutable and user.args[0] is node
        for user in node.users
    )


def realize_scalars(graph: fx.GraphModule) -> fx.GraphModule:
    """Insert `cstorch::realize` between computed 0-d tensors and the large tensors that they meet.

    Args:
        graph: A traced graph whose nodes have their fake tensors in `meta["val"]`. It is changed.
    """
    for node in list(graph.graph.nodes):
        value = _value(node)
        if value is None or value.dim() != 0 or not value.dtype.is_floating_point or not _is_fresh(node):
            continue
        large = [user for user in node.users if (v := _value(user)) is not None and v.numel() >= _LARGE]
        if not large:
            continue
        with graph.graph.inserting_after(node):
            kept = graph.graph.call_function(torch.ops.cstorch.realize.default, (node,))
        kept.meta["val"] = value
        for user in large:
            user.replace_input_with(node, kept)
    graph.recompile()
    return graph
