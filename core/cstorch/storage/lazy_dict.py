"""Dicts of a loaded checkpoint that read their tensors when these are asked for."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, ItemsView, Iterable, Iterator, ValuesView
from typing import Any

import torch


class Unread(int):
    """Stands in a lazy dict for a tensor of the file: the number that the dict's `read` knows it by.

    A number alone, since the garbage collector does not look at those: a file may hold tens of thousands.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<tensor {int(self)} of a checkpoint, not read>"


class Refused:
    """Stands in a lazy dict for what may not be read.

    Args:
        error: What is raised when it is asked for.
    """

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Lazy(dict):  # type: ignore[type-arg]
    """What a lazy dict does: every way to a value leads through `_seen`.

    Args:
        items: The items, some of them `Unread`.
        read: Gives the tensor of a number.
    """

    __slots__ = ()
    _read: Any

    def __init__(self, items: Iterable[tuple[Any, Any]] = (), read: Callable[[int], Any] | None = None) -> None:
        super().__init__(items)
        self._read = read

    def _seen(self, value: Any) -> Any:
        if type(value) is Refused:
            raise value.error
        return self._read(value) if type(value) is Unread else value

    def __getitem__(self, key: Any) -> Any:
        return self._seen(super().__getitem__(key))

    def __iter__(self) -> Iterator[Any]:  # not dict's own: dict(lazy) and {**lazy} then ask for the items
        return super().__iter__()

    def get(self, key: Any, default: Any = None) -> Any:
        return self._seen(super().get(key, default))

    def values(self) -> Any:
        return ValuesView(self)

    def items(self) -> Any:
        return ItemsView(self)

    def pop(self, key: Any, *default: Any) -> Any:
        return self._seen(super().pop(key, *default))

    def popitem(self, *args: Any, **kwargs: Any) -> Any:
        key, value = super().popitem(*args, **kwargs)
        return key, self._seen(value)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def copy(self) -> Any:
        """Another lazy dict of the same values."""
        made = type(self)([(key, dict.__getitem__(self, key)) for key in self], self._read)
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

    __slots__ = ("__dict__", "_read")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self.items()),)


class LazyOrderedDict(_Lazy, OrderedDict):  # type: ignore[type-arg]
    """The same of an OrderedDict, as `state_dict` makes them."""

    __slots__ = ("_read",)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return OrderedDict, (), vars(self) or None, None, iter(list(self.items()))


def lazy_dict(read: Callable[[int], torch.Tensor], kind: type, items: list[tuple[Any, Any]]) -> Any:
    """A dict, or an OrderedDict, of `items`; a lazy one, with `read`, if any is unread."""
    if not any(type(value) in (Unread, Refused) for _, value in items):
        return kind(items)
    return LazyDict(items, read) if kind is dict else LazyOrderedDict(items, read)


class NamedTensors:
    """Makes the tensors and dicts of a file that knows its tensors by name.

    Args:
        read: Gives the tensor of a name.
        is_lazy: Whether tensors stay unread.
    """

    def __init__(self, read: Callable[[str], torch.Tensor], is_lazy: bool) -> None:
        self._read_name, self._is_lazy = read, is_lazy
        self._names: list[str] = []

    def tensor(self, name: str) -> Any:
        """The tensor, or an `Unread` of it that is to go into a dict of `dict`."""
        if not self._is_lazy:
            return self._read_name(name)
        self._names.append(name)
        return Unread(len(self._names) - 1)

    def read(self, number: int) -> torch.Tensor:
        """The tensor that an `Unread` stands for."""
        return self._read_name(self._names[number])

    def dict(self, kind: type, items: list[tuple[Any, Any]]) -> Any:
        """A dict, or an OrderedDict, of items."""
        return lazy_dict(self.read, kind, items)


class _Settler:
    """Plain dicts in place of lazy ones: each tensor is read once, and what is tied in the file is tied."""

    def __init__(self) -> None:
        self._readers: dict[int, Any] = {}
        self._open: set[int] = set()

    def __call__(self, value: Any) -> Any:
        kind = type(value)
        if kind not in (dict, OrderedDict, list, tuple, LazyDict, LazyOrderedDict) or id(value) in self._open:
            return value
        self._open.add(id(value))
        if kind is list or kind is tuple:
            parts = [self(v) for v in value]
            is_same = all(map(operator.is_, parts, value))
        else:
            before = [dict.__getitem__(value, key) for key in value]
            parts = [self._read(value, v) if type(v) in (Unread, Refused) else self(v) for v in before]
            is_same = not isinstance(value, _Lazy) and all(map(operator.is_, parts, before))
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

    def _read(self, of: _Lazy, value: Any) -> torch.Tensor:
        if type(value) is Refused:
            raise value.error
        read = of._read
        reader = self._readers.get(id(read))
        if reader is None:
            keeping = getattr(read, "keeping", None)
            reader = self._readers[id(read)] = read if keeping is None else keeping()
        made: torch.Tensor = reader(value)
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
