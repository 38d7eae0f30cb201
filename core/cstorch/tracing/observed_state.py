"""An optimizer's `state` that counts who looks at it, so that a program need not compare it before each step.

Nobody replaces an entry of the state without reaching it through `optimizer.state`, or through a table of it that
was kept from an earlier look. As long as the count stands still and nobody keeps a table, the state is as it was.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from itertools import chain
from sys import getrefcount
from typing import Any

import torch

_Tables = collections.defaultdict[Any, dict[str, Any]]


class ObservedState(_Tables):
    """The state of one optimizer; copies and pickles of it are plain defaultdicts.

    Attributes:
        accesses: How often anybody looked, entered or removed something.
    """

    __slots__ = ("accesses",)

    def __init__(self, tables: dict[Any, dict[str, Any]] | None = None) -> None:
        super().__init__(dict, tables or {})
        self.accesses = 0

    def tables(self) -> list[int]:
        """Which tables there are, by id, without being counted or keeping them."""
        return [*map(id, dict.values(self))]

    def entries(self) -> list[Any]:
        """All values of all tables, in order, without being counted."""
        return [*chain.from_iterable(map(dict.values, dict.values(self)))]

    def table(self, parameter: torch.Tensor) -> dict[str, Any] | None:
        """The table of `parameter`, without being counted."""
        return dict.get(self, parameter)

    def is_private(self) -> bool:
        """Whether nobody else keeps a table."""
        return max(map(getrefcount, dict.values(self)), default=_ALONE) == _ALONE

    def __copy__(self) -> _Tables:  # type: ignore[override]
        return self.copy()

    def __reduce__(self) -> Any:
        self.accesses += 1
        return collections.defaultdict, (dict,), None, None, iter([*dict.items(self)])

    def copy(self) -> _Tables:  # type: ignore[override]
        """A plain defaultdict with the same tables."""
        return collections.defaultdict(dict, self.items())

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def __iter__(self) -> Iterator[Any]:
        self.accesses += 1
        return dict.__iter__(self)


def _counted(name: str) -> Any:
    plain = getattr(collections.defaultdict, name)

    def method(self: ObservedState, *args: Any, **kwargs: Any) -> Any:
        self.accesses += 1
        return plain(self, *args, **kwargs)

    method.__name__ = name
    return method


for _name in (
    *("__getitem__", "__setitem__", "__delitem__", "__ior__", "__reversed__"),
    *("get", "keys", "values", "items", "pop", "popitem", "setdefault", "update", "clear"),
):
    setattr(ObservedState, _name, _counted(_name))

_ALONE = max(map(getrefcount, dict.values(ObservedState({None: {}}))))


def observe_state(optimizer: torch.optim.Optimizer) -> ObservedState:
    """`optimizer.state` as an ObservedState, which takes its place if it is none yet; its tables stay the same."""
    state = optimizer.state
    if not isinstance(state, ObservedState):
        state = optimizer.state = ObservedState(state)
    return state
