"""Hints to the compiler of a cluster, attached to what a function does (`cerebras.pytorch.core.annotation`).

They change no result. Programs that give some run here as without them, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from cstorch.where import user_line

F = TypeVar("F", bound=Callable[..., object])


class AnnotationMode:
    """The types that programs build their hints of."""

    class Config:
        """What a hint is made of: programs derive from it."""

    class Attribute:
        """A hint; what it is made with is kept and not looked at."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.args, self.kwargs = args, kwargs


def hint(what: str, *args: Any, **kwargs: Any) -> Callable[[F], F]:
    """A decorator that leaves a function as it is, after a warning with the user's line where anything is hinted at.

    Args:
        what: The name of the function that the program calls.
        args: What it is called with; None hints at nothing.
        kwargs: The same.
    """
    if any(value is not None for value in (*args, *kwargs.values())):
        warnings.warn(
            f"{what}(...) (at {user_line()}) is a hint to the compiler of a cluster and has no effect here; results "
            "are the same without it.",
            stacklevel=3,
        )
    return lambda function: function


def create_annotation(*args: Any, **kwargs: Any) -> Callable[[F], F]:
    """A decorator that attaches a hint to what a function does; warns that it has no effect here.

    Args:
        args: Of the hint; not looked at.
        kwargs: The same.

    Returns:
        A decorator that returns the function as it is.
    """
    return hint("create_annotation", *args, **kwargs)
