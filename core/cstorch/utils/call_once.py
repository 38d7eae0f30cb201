"""`call_once`: what is to be done at most once in a process (`cerebras.pytorch.utils.call_once`)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def call_once() -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: the first call runs the function, later ones return what it returned, whatever their arguments.

    A first call that raises does not count.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        result: list[Any] = []

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if not result:
                result.append(function(*args, **kwargs))
            return result[0]  # type: ignore[no-any-return]

        return call

    return decorate
