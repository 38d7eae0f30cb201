"""Hints to the compiler of a cluster which kernel an operation shall use (`cerebras.pytorch.utils.kernel`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cstorch.core.annotation import F, hint


def kernel_annotater(*args: Any, **kwargs: Any) -> Callable[[F], F]:
    """A decorator that names the kernel of what a function does; it changes no result and has no effect here.

    Args:
        args: Of the hint; what is not None is warned of, as it is not looked at.
        kwargs: The same.

    Returns:
        A decorator that returns the function as it is.
    """
    return hint("kernel_annotater", *args, **kwargs)
