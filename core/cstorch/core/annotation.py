"""Hints to the compiler of a cluster, attached to what a function does (`cerebras.pytorch.core.annotation`).

They change no result. Programs that give some run here as without them, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from cstorch.where import user_line

F = TypeVar("F", bound=Callable[..., object])


class AnnotationMode:
    """The two types that programs build their hints of."""

    @dataclass
    class Config:
        """What a hint is made of: programs subclass it with a dataclass of their own."""

    @dataclass(frozen=True)
    class Attribute:
        """A hint.

        Attributes:
            name: Its name.
            value: Its value.
        """

        name: str
        value: Any


def warn_of_hint(what: str) -> None:
    """Warn, with the user's line, that a hint has no effect.

    Args:
        what: The call, as the program writes it.
    """
    warnings.warn(
        f"{what} (at {user_line()}) is a hint to the compiler of a cluster and has no effect here; results are the "
        "same without it.",
        stacklevel=3,
    )


def create_annotation(
    config_class: type[AnnotationMode.Config], get_attribute: Callable[..., Any], **kwargs: Any
) -> Callable[[F], F]:
    """A decorator that attaches a hint to what a function does; warns that it has no effect here.

    Args:
        config_class: Makes the configuration of the hint.
        get_attribute: Makes the hint of that; not called here.
        kwargs: Of `config_class`, which checks them.

    Returns:
        A decorator that returns the function as it is.

    Raises:
        TypeError: `config_class` does not take `kwargs`.
    """
    config_class(**kwargs)
    warn_of_hint(f"create_annotation({config_class.__name__}, ...)")
    return lambda function: function
