"""Sorts the operations of a graph into a few kinds that a person thinks in."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from cstorch.compiler.flops import has_formula
from cstorch.tracing.across_systems import COMBINE

_COLLECTIVES = frozenset({"c10d", "_c10d_functional"})
_REDUCTIONS = ("softmax", "_norm", "_loss", "mean", "max", "min", "var", "std", "cumsum", "pool")
_COPIES = frozenset(
    {"copy_", "clone", "_to_copy", "cat", "stack", "fill_", "zero_", "arange", "constant_pad_nd", "repeat"}
)
_FILLS = ("zeros", "ones", "full", "empty", "new_")
_LOOKUPS = ("embedding", "index", "gather", "scatter", "take", "masked_fill")


def name_of(node: fx.Node) -> str:
    """The operator's name without its namespace and overload: `mm`, `add_`."""
    return str(getattr(node.target, "overloadpacket", node.target)).removeprefix("aten.").removeprefix("cstorch.")


def kind_of(node: fx.Node) -> str:
    """The kind of operation of a node that calls a function."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return "other"
    name = name_of(node)
    if target in COMBINE or target.namespace in _COLLECTIVES:
        return "collectives"
    if has_formula(node):
        return "attention" if "attention" in name else "convolutions" if "conv" in name else "matrix products"
    if torch.Tag.nondeterministic_seeded in target.tags:
        return "random numbers"
    if any(r.alias_info is not None and not r.alias_info.is_write for r in target._schema.returns):
        return "views"
    if name in _COPIES or name.startswith(_FILLS):
        return "copies and fills"
    if torch.Tag.pointwise in target.tags:
        return "elementwise"
    if torch.Tag.reduction in target.tags or any(part in name for part in _REDUCTIONS):
        return "reductions and norms"
    if any(part in name for part in _LOOKUPS):
        return "lookups"
    return "other"
