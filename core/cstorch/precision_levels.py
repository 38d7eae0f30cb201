"""`cstorch.pol`: the precision optimization level of a part of a model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from cstorch.backends import csx
from cstorch.tracing.context import context

P = ParamSpec("P")
R = TypeVar("R")

LEVELS = (0, 1, 2)


def pol(level: int | None = None, bwd_level: int | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: within a call of the function or module, `current_pol()` is `level` (`cerebras.pytorch.pol`).

    `cstorch.pol(bwd_level=0)(self.lm_head)(x)` is how programs keep a sensitive layer exact on a system. At
    `csx.precision.optimization_level = 2` its forward matrix products stay in float32 here at levels 0 and 1. Levels
    have no other effect, and `bwd_level` has none; programs that ask `current_pol()` see the level.

    Args:
        level: 0 (exact), 1 or 2 (fastest) in the forward pass; None leaves it as it is.
        bwd_level: The same for the backward pass.

    Raises:
        ValueError: a level that does not exist.
    """
    for name, value in (("level", level), ("bwd_level", bwd_level)):
        if value is not None and (isinstance(value, bool) or value not in LEVELS):
            raise ValueError(f"pol got {name}={value!r}, expected 0, 1, 2 or None.")

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            before = context.pol
            if level is not None:
                context.pol = level
            try:
                return function(*args, **kwargs)
            finally:
                context.pol = before

        if hasattr(function, "__name__"):
            functools.update_wrapper(call, function)
        return call

    return decorate


def current_pol() -> int:
    """The level of the innermost `pol` around, else the flag `csx.precision.optimization_level`."""
    if context.pol is not None:
        return context.pol
    return int(csx.precision.optimization_level)
