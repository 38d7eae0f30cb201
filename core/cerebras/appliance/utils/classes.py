"""Classes below a class (`cerebras.appliance.utils.classes`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


def retrieve_all_subclasses(cls: type[T]) -> Iterator[type[T]]:
    """Every subclass of a class and of those, each once.

    Args:
        cls: The class.

    Yields:
        Subclasses, those nearer to `cls` first.
    """
    level, seen = [cls], {cls}
    while level:
        level = [sub for kind in level for sub in kind.__subclasses__() if not (sub in seen or seen.add(sub))]  # type: ignore[func-returns-value]
        yield from level
