"""The host's part of a step as a straight line of Python: numbers read, schedulers stepped, counters written.

Whatever of a step depends on no tensor is gathered here in the order of the step, and done on the host before the
program runs: `lr = group["lr"]`, then perhaps `scheduler.step()`, then `lr` read again. The lines become one function.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_VARIABLE = re.compile(r"\bhost\d+\b")
_OBJECT = re.compile(r"\bobject\d+\b")


@dataclass(frozen=True)
class _Line:
    """A line of the host's code; `variable` is what it reads or draws into, or None where it acts."""

    variable: str | None
    source: str
    draws: bool = False

    def __str__(self) -> str:
        return self.source if self.variable is None else f"{self.variable} = {self.source}"


def literal(value: Any) -> str:
    """Python source of a plain value."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value)


def test(code: str, outcome: Any) -> str:
    """Python source of whether `code` evaluates to `outcome`."""
    if outcome is True:
        return code
    if outcome is False:
        return f"not {code}"
    if outcome is None:
        return f"{code} is None"
    return f"{code} != {code}" if outcome != outcome else f"{code} == {literal(outcome)}"


class HostCode:
    """The lines of one trace while they gather.

    Attributes:
        objects: What the names in the lines stand for.
        integers: Variables that hold an int in every run.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self._labels: dict[str, str] = {}
        self._names: dict[int, str] = {}
        self._early: list[_Line] = []
        self._lines: list[_Line] = []
        self._acts: Counter[str] = Counter()
        self._read: dict[tuple[int, str], str] = {}
        self._count = 0
        self._generators: list[Any] = []
        self.integers: set[str] = set()

    def name(self, value: Any, label: str = "") -> str:
        """The name that stands for `value` in the lines; `label` says in messages what it is."""
        name = self._names.get(id(value))
        if name is None:
            name = self._names[id(value)] = f"object{len(self.objects)}"
            self.objects[name] = value
        if label or name not in self._labels:
            self._labels[name] = label
        return name

    def read(self, name: str, source: str) -> str:
        """A variable with what `source`, which reads the object `name`, evaluates to at this point of the step."""
        place = (self._acts[name], source)
        if place not in self._read:
            self._read[place] = self._variable()
            (self._lines if place[0] else self._early).append(_Line(self._read[place], source))
        return self._read[place]

    def _variable(self) -> str:
        self._count += 1
        return f"host{self._count - 1}"

    def draw(self, source: str, generator: Any, is_int: bool) -> str:
        """A variable with what `source` draws at this point of the step.

        Args:
            source: A call.
            generator: The generator that it draws from, with `get()` and `put(state)`.
            is_int: Whether every draw is an int.
        """
        variable = self._variable()
        self._lines.append(_Line(variable, source, draws=True))
        if is_int:
            self.integers.add(variable)
        if generator not in self._generators:
            self._generators.append(generator)
        return variable

    def act(self, source: str, changes: Iterable[str] = ()) -> None:
        """Run `source` at this point of the step; reads of the objects of the names `changes` are then made anew."""
        self._lines.append(_Line(None, source))
        self._acts.update(changes)

    def variables(self, code: str) -> list[str]:
        """The variables that `code` uses."""
        return _VARIABLE.findall(code)

    def describe(self, code: str) -> str:
        """`code` in the words of the user's program."""
        sources = {line.variable: line.source for line in [*self._early, *self._lines]}
        code = _VARIABLE.sub(lambda m: sources[m.group()], code)
        return _OBJECT.sub(lambda m: self._labels[m.group()] or m.group(), code)

    def _function(self, lines: list[_Line], codes: list[str], tests: list[str], result: str) -> Any:
        """A function of `args` that does `lines`, without reads that nothing uses, then `tests`."""
        return self._compile([*self._used(lines, [*codes, *tests]), *tests, f"return {result}"])

    def _used(self, lines: list[_Line], codes: list[str]) -> list[str]:
        kept = [line.source for line in lines if line.variable is None or line.draws]
        wanted = {variable for code in [*codes, *kept] for variable in self.variables(code)}
        return [str(line) for line in lines if line.variable is None or line.draws or line.variable in wanted]

    def _compile(self, body: list[str]) -> Any:
        source = "".join(f"    {line}\n" for line in body)
        scope = {"math": math, **self._mentioned(source)}
        exec(f"def function(args):\n{source}", scope)
        return scope["function"]

    def _mentioned(self, source: str) -> dict[str, Any]:
        return {name: self.objects[name] for name in _OBJECT.findall(source)}

    def let_go(self, codes: Iterable[str]) -> None:
        """The trace is over: keep no object but those that evaluating `codes` takes."""
        self.objects = self._mentioned("\n".join([*codes, *self._used([*self._early, *self._lines], [*codes])]))
        self._names.clear()

    def compile_values(self, codes: list[str], guards: dict[str, Any], refuse: Callable[[str], None]) -> Any:
        """One function from the numbers of a call to the values of all `codes`, doing the lines in their order.

        Args:
            codes: Expressions.
            guards: Expressions with the outcomes that they must have.
            refuse: Called with a guard that can be tried only after something was done, and does not hold.
        """
        name = self.name(refuse)
        late = [f"({test(code, outcome)}) or {name}({code!r})" for code, outcome in self._split(guards)[2].items()]
        return self._function([*self._early, *self._lines], codes, late, f"({''.join(f'{code}, ' for code in codes)})")

    def compile_guards(self, guards: dict[str, Any]) -> Any:
        """One function from the numbers of a call to the first guard that does not hold, or None.

        Of guards only that can be tried before anything is done but drawing random numbers, which is undone.
        """
        early, drawn, _ = (
            [f"if not ({test(code, out)}): return {code!r}" for code, out in part.items()]
            for part in self._split(guards)
        )
        body = [*self._used(self._early, [*early, *drawn]), *early]
        if drawn:
            lines = [*self._used(self._drawn(), drawn), *drawn]
            body += [f"with {self.name(self._undone)}():", *(f"    {line}" for line in lines)]
        return self._compile([*body, "return None"])

    @contextlib.contextmanager
    def _undone(self) -> Iterator[None]:
        """Within, what is drawn is drawn again afterwards."""
        states = [generator.get() for generator in self._generators]
        try:
            yield
        finally:
            for generator, state in zip(self._generators, states, strict=True):
                generator.put(state)

    def evaluate(self, code: str, numbers: list[Any]) -> Any:
        """What `code` is for a call with `numbers` before anything is done."""
        with self._undone():
            return self._function([*self._early, *self._drawn()], [code], [], code)(numbers)

    def _drawn(self) -> list[_Line]:
        """The lines that draw before anything else is done."""
        return list(itertools.takewhile(lambda line: line.variable is not None, self._lines))

    def _split(self, guards: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Those that can be tried at first, after drawing, and only after something was done."""
        parts: tuple[dict[str, Any], dict[str, Any], dict[str, Any]] = ({}, {}, {})
        known = {line.variable for line in self._early}
        drawn = known.union(line.variable for line in self._drawn())
        for code, outcome in guards.items():
            used = self.variables(code)
            parts[0 if known.issuperset(used) else 1 if drawn.issuperset(used) else 2][code] = outcome
        return parts
