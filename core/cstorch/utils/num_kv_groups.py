"""Hints to the compiler of a cluster about grouped attention (`cerebras.pytorch.utils.num_kv_groups`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from cstorch.core.annotation import warn_of_hint

F = TypeVar("F", bound=Callable[..., object])


def groups_annotater(*args: Any, **kwargs: Any) -> Callable[[F], F]:
    """A decorator that tells of the groups of keys and values; it changes no result and has no effect here.

    Args:
        args: Of the reference; what is not None is warned of, as it is not looked at.
        kwargs: The same.

    Returns:
        A decorator that returns the function as it is.
    """
    if any(value is not None for value in (*args, *kwargs.values())):
        warn_of_hint("groups_annotater(...)")
    return lambda function: function
