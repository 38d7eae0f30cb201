"""Dicts of a loaded checkpoint that read their tensors when these are asked for."""

from __future__ import annotations

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


class Settled:
    """Plain dicts in place of lazy ones: each tensor is read once, and what is tied in the file is tied."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}
        self._readers: dict[int, Any] = {}

    def __call__(self, lazy: Any) -> Any:
        """The dict, or OrderedDict, of the values of `lazy`; the same one each time."""
        known = self._known.get(id(lazy))
        if known is None:
            plain: Any = OrderedDict() if isinstance(lazy, OrderedDict) else {}
            for key in lazy:
                value = dict.__getitem__(lazy, key)
                plain[key] = self._read(value) if type(value) is Unread else value
            if isinstance(lazy, OrderedDict):
                vars(plain).update(vars(lazy))
            known = self._known[id(lazy)] = (plain, lazy)
        return known[0]

    def _read(self, unread: Unread) -> torch.Tensor:
        reader = self._readers.get(id(unread.read))
        if reader is None:
            keeping = getattr(unread.read, "keeping", None)
            reader = self._readers[id(unread.read)] = unread.read if keeping is None else keeping()
        made: torch.Tensor = reader(unread.number)
        return made


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
    made: Any = LazyDict() if kind is dict else LazyOrderedDict()
    for key, value in items:
        made[key] = value
    return made
