"""Hints to the compiler of a cluster which kernel an operation shall use (`cerebras.pytorch.utils.kernel`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cstorch.core.annotation import warn_of_hint

F = TypeVar("F", bound=Callable[..., object])


def kernel_annotater(kernel: str | None = None) -> Callable[[F], F]:
    """A decorator that names the kernel of what a function does; it changes no result and has no effect here.

    Args:
        kernel: Its name; None for none. A name is warned of, as it is not looked at.

    Returns:
        A decorator that returns the function as it is.
    """
    if kernel is not None:
        warn_of_hint(f"kernel_annotater({kernel!r})")
    return lambda function: function
