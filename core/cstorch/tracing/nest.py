"""Takes nested batches, arguments and results apart into tensors and a hashable structure, and builds them again."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, MutableMapping
from typing import Any

import torch

from cstorch.device import CsxTensor

_PLAIN = (bool, str, bytes, type(None), complex, torch.dtype, torch.device, torch.Size)


class Identity:
    """A leaf that is known by being the same object: a model, an optimizer, a loss function."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value  # held, so that its address is not given to another object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return f"<{type(self.value).__name__}>"


def _is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def children(value: Any) -> tuple[list[Any], list[Any]] | None:
    """Keys and values of a container, or None for a leaf."""
    kind = type(value)
    if kind is tuple or kind is list or _is_namedtuple(value):
        return list(range(len(value))), list(value)
    if isinstance(value, MutableMapping):
        return list(value.keys()), list(value.values())
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, torch.nn.Module)):
        names = [f.name for f in dataclasses.fields(value)]
        return names, [getattr(value, name) for name in names]
    return None


def rebuild(like: Any, keys: list[Any], values: list[Any]) -> Any:
    """A container of the kind of `like` with new values."""
    kind = type(like)
    if kind is tuple or kind is list:
        return kind(values)
    if _is_namedtuple(like):
        return kind(*values)
    if kind is dict:
        return dict(zip(keys, values, strict=True))
    made = copy.copy(like)
    for key, value in zip(keys, values, strict=True):
        if isinstance(like, MutableMapping):
            made[key] = value
        else:
            object.__setattr__(made, key, value)
    return made


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `function` applied to every leaf; containers are new, other objects are passed to `function`."""
    parts = children(value)
    if parts is None:
        return function(value)
    keys, values = parts
    return rebuild(value, keys, [map_leaves(function, v) for v in values])


def leaves(value: Any) -> list[Any]:
    """All leaves of `value` in order."""
    parts = children(value)
    if parts is None:
        return [value]
    return [leaf for v in parts[1] for leaf in leaves(v)]


def signature(value: Any, key: list[Any], tensors: list[torch.Tensor], numbers: list[Any]) -> None:
    """Append a hashable description of `value` to `key`; its tensors and numbers go to the lists instead.

    Tensors are inputs by position, except those that an optimizer may know (parameters and other csx tensors
    that require gradients): these are known by identity. This runs at every step, so it is written flat.

    Args:
        value: Any nesting of tuples, lists, mappings, dataclasses and leaves.
        key: Receives the description.
        tensors: Receives the input tensors, in order.
        numbers: Receives the ints and floats, in order.
    """
    kind = type(value)
    if kind is torch.Tensor:
        tensors.append(value)
        key.append(value.shape)
        key.append(value.dtype)
    elif kind is tuple or kind is list:
        key.append(kind)
        key.append(len(value))
        for item in value:
            signature(item, key, tensors, numbers)
    elif kind is dict:
        key.append(dict)
        key.extend(value)
        for item in value.values():
            signature(item, key, tensors, numbers)
    elif kind is int or kind is float:
        numbers.append(value)
        key.append(kind)
    elif isinstance(value, torch.Tensor):
        if is_state(value):
            key.append(Identity(value))
        else:
            tensors.append(value)
            host = getattr(value, "_host", None)
            seen = value if host is None else host
            key.append(seen.shape)
            key.append(seen.dtype)
    elif isinstance(value, _PLAIN):
        key.append(value)
    elif (number := number_of(value)) is not None:
        numbers.append(number)
        key.append(kind)
    else:
        parts = children(value)
        if parts is None:
            key.append(Identity(value))
        else:
            key.append(kind)
            key.extend(parts[0])
            for item in parts[1]:
                signature(item, key, tensors, numbers)


def number_of(value: Any) -> Any:
    """The Python int or float that `value` is, also when it is a scalar of numpy; otherwise None."""
    kind = type(value)
    if kind is int or kind is float:
        return value
    if kind.__module__ == "numpy" and getattr(value, "ndim", None) == 0 and hasattr(value, "dtype"):
        number = value.item()
        return number if type(number) in (int, float) else None
    return None


def is_state(tensor: torch.Tensor) -> bool:
    """Whether a tensor among the arguments of a step is known by identity rather than by position."""
    return isinstance(tensor, torch.nn.Parameter) or (isinstance(tensor, CsxTensor) and tensor.requires_grad)
