"""The guards of a program: expressions over the state of the host, with the outcomes that they had in the trace.

They are Python source over `args` (the numbers of a call) and the variables of the host code, compiled into one
function that is asked at every call.
"""

from __future__ import annotations

from cstorch.tracing.scalars import Number, ScalarScope

_FAILURES = (ArithmeticError, ValueError, LookupError)  # a trace will raise it at the user's line


class Guards:
    """What must hold for a program to be right.

    Args:
        scope: The host scalars, guards and host code of the finished trace.
    """

    def __init__(self, scope: ScalarScope) -> None:
        self._scope = scope
        self._failing = scope.host.compile_guards(scope.guards)
        scope.host.let_go(scope.guards)

    def __call__(self, numbers: list[Number]) -> bool:
        """Whether all hold for a call with these numbers."""
        try:
            return self._failing(numbers) is None
        except _FAILURES:
            return False

    def failed(self, numbers: list[Number]) -> str | None:
        """The first guard that does not hold, in words."""
        try:
            code = self._failing(numbers)
        except _FAILURES as error:
            return f"a number that the step branches on cannot be computed now ({type(error).__name__}: {error})"
        if code is None or code in self._scope.words:
            return code and self._scope.words[code]
        now, words = self._scope.host.evaluate(code, numbers), self._scope.host.describe(code)
        before = self._scope.guards[code]
        return f"a number that the step branches on has changed: {words} is {now!r}, before it was {before!r}"

    def in_words(self) -> list[str]:
        """What must hold, guard by guard, in the words of the user's program."""
        describe = self._scope.host.describe
        return [f"{describe(code)} is {outcome!r}" for code, outcome in self._scope.guards.items()]
