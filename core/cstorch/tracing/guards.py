"""The guards of a program: expressions over the state of the host, with the outcomes that they had in the trace.

They are Python source over `args` (the numbers of a call), `groups` (param_groups) and `objects` (anything else),
compiled into one function that is asked at every call.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from cstorch.tracing.scalars import Number, ScalarScope, code_of


class Guards:
    """What must hold for a program to be right.

    Args:
        scope: The host scalars, guards and objects of the finished trace.
    """

    def __init__(self, scope: ScalarScope) -> None:
        self._outcomes = dict(scope.guards)
        self._words = scope.words
        self._names = {"groups": scope.groups, "objects": scope.objects, "math": math}
        body = " and ".join(itertools.starmap(_test, self._outcomes.items())) or "True"
        self._hold: Callable[[list[Number]], bool] = eval(f"lambda args: {body}", self._names)

    def __call__(self, numbers: list[Number]) -> bool:
        """Whether all hold for a call with these numbers."""
        try:
            return self._hold(numbers)
        except (ArithmeticError, ValueError, LookupError):  # a trace will raise it at the user's line
            return False

    def failed(self, numbers: list[Number]) -> str | None:
        """The first guard that does not hold, in words."""
        for code, outcome in self._outcomes.items():
            try:
                found = eval(code, self._names, {"args": numbers})
            except (ArithmeticError, ValueError, LookupError) as error:
                found = error
            if type(found) is type(outcome) and (found == outcome or found != found):
                continue
            if code in self._words:
                return self._words[code]
            return f"a number that the step branches on has changed: {code} is {found!r}, before it was {outcome!r}"
        return None


def _test(code: str, outcome: Any) -> str:
    if outcome is True:
        return code
    if outcome is False:
        return f"not {code}"
    return f"{code} != {code}" if outcome != outcome else f"{code} == {code_of(outcome)}"
