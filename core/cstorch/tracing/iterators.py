"""Iterators that a step can reach: what it takes from them it takes once, while it is traced.

`clip_grad_norm_(parameters_generator)` is the usual case: run as it is, the step clips at its first call and never
again; traced, it clips at every one.
"""

from __future__ import annotations

import operator
import types
import warnings
from collections.abc import Iterator
from typing import Any

from cstorch.tracing.surroundings import Holder


class Iterators:
    """What is left in the iterators of a step before it is traced.

    Args:
        holders: Everything that holds values which the step can reach.
    """

    def __init__(self, holders: list[Holder]) -> None:
        found = {id(value): (holder.path(key), value) for holder in holders for key, value in holder.before.items()}
        self._found = [(path, it, _place(it)) for path, it in found.values() if isinstance(it, Iterator)]

    def warn_of_taken(self, name: str) -> None:
        """Warn where the trace of the step `name` has taken something from them."""
        taken = [(path, it) for path, it, before in self._found if before is not None and _place(it) != before]
        if taken:
            ended = [path for path, it in taken if _is_spent(it)]
            listed = ", ".join(path for path, _ in taken)
            what = f"exhausts {', '.join(ended)}" if ended else f"takes values from {listed}"
            warnings.warn(
                f"the traced step {name!r} {what}, which is an iterator. Its Python ran once, while it was traced: "
                "every run of the program repeats what it did with the values of then, while a backend that runs the "
                "step as it is, such as CPU, finds the iterator further on or empty at the next step. Make a list of "
                "it before the step, or take the next value in the loop and pass it as an argument.",
                stacklevel=5,
            )


def _place(iterator: Any) -> Any:
    """How far an iterator has come, in a form that can be compared; None where it does not say."""
    if isinstance(iterator, types.GeneratorType):
        return None if iterator.gi_frame is None else iterator.gi_frame.f_lasti, _locals(iterator)
    return operator.length_hint(iterator) if hasattr(type(iterator), "__length_hint__") else None


def _locals(generator: types.GeneratorType[Any, Any, Any]) -> int:
    """Which objects a generator's variables are now: it moves on with the same instruction in a loop."""
    return 0 if generator.gi_frame is None else hash(tuple(map(id, generator.gi_frame.f_locals.values())))


def _is_spent(iterator: Any) -> bool:
    if isinstance(iterator, types.GeneratorType):
        return iterator.gi_frame is None
    return operator.length_hint(iterator) == 0
