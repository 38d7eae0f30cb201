"""Dicts of a loaded checkpoint that read their tensors when these are asked for."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, ItemsView, Iterator, ValuesView
from typing import Any

import torch


class Unread:
    """Stands in a lazy dict for a tensor of the file.

    Args:
        read: Gives the tensor.
        number: What `read` knows it by.
    """

    __slots__ = ("number", "read")

    def __init__(self, read: Callable[[Any], torch.Tensor], number: Any) -> None:
        self.read, self.number = read, number

    def __repr__(self) -> str:
        return f"<tensor {self.number} of a checkpoint, not read>"


def _seen(value: Any) -> Any:
    return value.read(value.number) if type(value) is Unread else value


class _Lazy(dict):  # type: ignore[type-arg]
    """What a lazy dict does: every way to a value leads through `_seen`."""

    def __getitem__(self, key: Any) -> Any:
        return _seen(super().__getitem__(key))

    def __iter__(self) -> Iterator[Any]:  # not dict's own: dict(lazy) and {**lazy} then ask for the items
        return super().__iter__()

    def get(self, key: Any, default: Any = None) -> Any:
        return _seen(super().get(key, default))

    def values(self) -> Any:
        return ValuesView(self)

    def items(self) -> Any:
        return ItemsView(self)

    def pop(self, key: Any, *default: Any) -> Any:
        return _seen(super().pop(key, *default))

    def popitem(self, *args: Any, **kwargs: Any) -> Any:
        key, value = super().popitem(*args, **kwargs)
        return key, _seen(value)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def copy(self) -> Any:
        """Another lazy dict of the same values."""
        made = type(self)()
        for key in self:
            made[key] = super().__getitem__(key)
        vars(made).update(vars(self))
        return made

    __copy__ = copy

    def __or__(self, other: Any) -> Any:
        made = self.copy()
        made.update(other)
        return made

    def __ror__(self, other: Any) -> Any:
        return {**other, **self}

    def __eq__(self, other: object) -> bool:
        return dict(self.items()) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


class LazyDict(_Lazy):
    """A dict whose tensors are read from the file at every access, or at the first ("cache")."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self.items()),)


class LazyOrderedDict(_Lazy, OrderedDict):  # type: ignore[type-arg]
    """The same of an OrderedDict, as `state_dict` makes them."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return OrderedDict, (), vars(self) or None, None, iter(list(self.items()))


def lazy_dict(kind: type, items: list[tuple[Any, Any]]) -> Any:
    """A dict, or an OrderedDict, of `items`; a lazy one if any is unread."""
    if not any(type(value) is Unread for _, value in items):
        return kind(items)
    return LazyDict(items) if kind is dict else LazyOrderedDict(items)


class _Settler:
    """Plain dicts in place of lazy ones: each tensor is read once, and what is tied in the file is tied."""

    def __init__(self) -> None:
        self._readers: dict[int, Any] = {}
        self._open: set[int] = set()

    def __call__(self, value: Any) -> Any:
        kind = type(value)
        if kind not in (dict, OrderedDict, list, tuple, LazyDict, LazyOrderedDict) or id(value) in self._open:
            return self._read(value) if kind is Unread else value
        self._open.add(id(value))
        if kind is list or kind is tuple:
            parts = [self(v) for v in value]
            is_same = all(map(operator.is_, parts, value))
        else:
            before = [dict.__getitem__(value, key) for key in value]
            parts = [self(v) for v in before]
            is_same = isinstance(value, _Lazy) is False and all(map(operator.is_, parts, before))
        self._open.discard(id(value))
        if is_same:
            return value
        if kind is list or kind is tuple:
            return kind(parts)
        plain: Any = OrderedDict() if isinstance(value, OrderedDict) else {}
        plain.update(zip(value, parts, strict=True))
        if isinstance(value, OrderedDict):
            vars(plain).update(vars(value))
        return plain

    def _read(self, unread: Unread) -> torch.Tensor:
        reader = self._readers.get(id(unread.read))
        if reader is None:
            keeping = getattr(unread.read, "keeping", None)
            reader = self._readers[id(unread.read)] = unread.read if keeping is None else keeping()
        made: torch.Tensor = reader(unread.number)
        return made

    def sources(self) -> dict[int, Any]:
        """Of the storages that are unread bytes of a file, by their identity: where they are."""
        found: dict[int, Any] = {}
        for reader in self._readers.values():
            found |= getattr(reader, "sources", dict)()
        return found


def settled(value: Any) -> tuple[Any, dict[int, Any]]:
    """`value` with plain dicts for the lazy ones in its dicts, lists and tuples, to be saved; and what is unread."""
    settler = _Settler()
    plain = settler(value)
    return plain, settler.sources()
