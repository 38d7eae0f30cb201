"""Names of client programs whose feature is not there: they import, and say what to do instead when they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def absent(name: str, advice: str) -> Any:
    """What stands for a function or class that is not part of this implementation.

    It can be imported, passed on, subclassed and used in `isinstance`; to call it is an error.

    Args:
        name: What programs call it.
        advice: What to do instead, a sentence.

    Returns:
        A class; to make one raises NotImplementedError with `name` and `advice`.
    """

    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"{name} is not part of this implementation. {advice}")

    words = (
        f"`{name}`, which is not part of this implementation.\n\n{advice}\n\nRaises:\n    NotImplementedError: always."
    )
    body = {"__init__": refuse, "__doc__": words, "__module__": name.rpartition(".")[0]}
    return type(name.rpartition(".")[2], (), body)


def anything_of(module: str, advice: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module of which nothing is there.

    Args:
        module: Its name.
        advice: What to do instead, a sentence.

    Returns:
        A function that raises ImportError for every name but Python's own, so that `from module import name` keeps
        the text, which an AttributeError would lose.
    """

    def refuse(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(f"{module}.{name} is not part of this implementation. {advice}")

    return refuse
