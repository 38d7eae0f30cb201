"""Walks through nested values and through torch's descriptions of them (`cerebras.pytorch.utils.nest`)."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import TreeSpec

from cstorch.tracing.nest import children


def visit_torch_tensors(
    value: Any, fn: Callable[[list[str], torch.Tensor], Any] | None = None, scope: list[str] | None = None
) -> Iterator[tuple[list[str], torch.Tensor]]:
    """Every tensor in nested lists, tuples, mappings and dataclasses, with its place.

    Args:
        value: The nested value.
        fn: Called with place and tensor as well.
        scope: Begins every place.

    Yields:
        Pairs of place and tensor; a place is a list of keys and positions, as texts.
    """
    place = list(scope or ())
    if isinstance(value, torch.Tensor):
        if fn is not None:
            fn(place, value)
        yield place, value
        return
    parts = children(value)
    for key, part in zip(*parts, strict=True) if parts is not None else ():
        yield from visit_torch_tensors(part, fn, [*place, str(key)])


def recurse_spec(spec: TreeSpec) -> Iterator[list[str]]:
    """The place of every leaf that a `torch.utils._pytree.TreeSpec` describes, in the order of its leaves.

    Args:
        spec: What `tree_flatten` returned.

    Yields:
        Lists of keys and positions, as texts; an empty one where the whole is a leaf.
    """
    if spec.is_leaf():
        yield []
        return
    keys = range(spec.num_children)
    if spec.type in (dict, OrderedDict, defaultdict):
        keys = spec.context[1] if spec.type is defaultdict else spec.context
    for key, child in zip(keys, spec.children(), strict=True):
        for place in recurse_spec(child):
            yield [str(key), *place]
