"""Hints to the compiler of a cluster about grouped attention (`cerebras.pytorch.utils.num_kv_groups`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cstorch.core.annotation import F, hint


def groups_annotater(*args: Any, **kwargs: Any) -> Callable[[F], F]:
    """A decorator that tells of the groups of keys and values; it changes no result and has no effect here.

    Args:
        args: Of the hint; what is not None is warned of, as it is not looked at.
        kwargs: The same.

    Returns:
        A decorator that returns the function as it is.
    """
    return hint("groups_annotater", *args, **kwargs)
