"""Dicts of numbers that the host owns are read anew at each step, and written to at each step where the step writes.

While a step is traced, the numbers in param_groups, in the optimizers' own attributes and among their state (step
counters) are host scalars. What an optimizer assigns there is assigned again after each run. Work of the host
between (`scheduler.step()`) sees the plain numbers and takes its place in the order of the step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from cstorch._torch_private.tracing import outside_modes
from cstorch.device import CsxTensor
from cstorch.errors import StateError, TraceError
from cstorch.tracing.recorder import Recorder
from cstorch.tracing.scalars import HostScalar, code_of, is_number, make_scalar, plain_number
from cstorch.where import user_line

Table = dict[str, Any]
_FLAG = (bool, str, type(None))
_ABSENT = object()


@dataclass
class _Exposed:
    table: Table
    name: str
    label: str
    plain: Table
    entries: Table
    handles: list[tuple[str, CsxTensor, Any]]
    grows: bool = False  # whether new keys are someone else's business


class HostTables:
    """The tables of numbers of one trace.

    Args:
        recorder: The trace.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._scope, self._host = recorder.scalars, recorder.scalars.host
        self.paused = False
        self._exposed: dict[int, _Exposed] = {}
        self._before: list[tuple[Table, Table, list[tuple[torch.Tensor, torch.Tensor]]]] = []
        self._written: dict[tuple[str, str], Any] = {}  # what the step has assigned, while nothing else changes it
        self._deferred: dict[str, str] = {}
        self._unknown: dict[str, str] = {}

    # -- reading -----------------------------------------------------------------------------------------

    def expose(self, table: Table, label: str, tensors: bool = False) -> None:
        """Until `conceal`, the numbers in `table` are host scalars.

        Args:
            table: The dict.
            label: What messages call it.
            tensors: Whether tensors of one element are numbers too, read anew at each step.
        """
        if self.paused:
            return
        if id(table) in self._exposed:
            return
        self.remember(table)
        made = _Exposed(table, self._host.name(table, label), label, dict(table), {}, [])
        for key, value in made.plain.items():
            if (made.name, key) in self._written:
                entry = self._written[made.name, key]
            elif key != "params":
                entry = self._stand_in(made, key, f"[{key!r}]", value, tensors)
            else:
                continue
            if entry is not value:
                made.entries[key] = entry
        table.update(made.entries)
        self._exposed[id(table)] = made

    def guard_flags(self, table: Table, ignored: Iterable[str] = (), owner: str = "") -> None:
        """Make strings, booleans and None in an exposed table guards of the program, except under `ignored` keys.

        `owner` completes the label of the table in messages.
        """
        for key in self._exposed[id(table)].plain:
            if key not in ignored:
                self.guard_flag(table, key, owner)

    def guard_flag(self, table: Table, key: str, owner: str = "") -> None:
        """Make an entry of an exposed table a guard of the program, if it is a string, a boolean or None."""
        made = self._exposed[id(table)]
        value = made.plain.get(key, _ABSENT)
        if isinstance(value, _FLAG) and (made.name, key) not in self._written:
            words = f"{made.label}[{key!r}]{owner} was {value!r} and is something else now"
            self._scope.guard(self._read(made.name, f"{made.name}[{key!r}]"), value, words)

    def expose_counters(self, tables: Iterable[Table], label: str) -> None:
        """Until `conceal`, numbers in the tables are host scalars; equal ones are one, as they advance together."""
        first: dict[Any, Any] = {}
        for table in tables:
            self.expose(table, label)
            self.guard_flags(table)
            made = self._exposed[id(table)]
            made.grows = True
            for key, scalar in made.entries.items():
                if isinstance(scalar, HostScalar):
                    shared = first.setdefault((key, type(scalar), made.plain[key]), scalar)
                    if shared is not scalar:
                        self._scope.guard(f"({code_of(scalar)} == {code_of(shared)})", True)
                        table[key] = made.entries[key] = shared

    def _read(self, name: str, source: str) -> str:
        variable = self._host.read(name, source)
        if name in self._deferred:
            self._unknown[variable] = self._deferred[name]
        return variable

    def _stand_in(self, made: _Exposed, key: str, place: str, value: Any, tensors: bool) -> Any:
        if is_number(value):
            source = f"{made.name}{place}"
            source = f"float({source})" if isinstance(value, float) else source  # a tensor may be there later
            return make_scalar(self._scope, self._read(made.name, source), value)
        if tensors and isinstance(value, torch.Tensor) and value.numel() == 1:
            with outside_modes(), torch._C.DisableTorchFunction():
                hint = float(value.detach())
            scalar = make_scalar(self._scope, self._read(made.name, f"float({made.name}{place})"), hint)
            handle = self.recorder.scalar_input(scalar).to(value.dtype).reshape(value.shape)
            assert isinstance(handle, CsxTensor)
            made.handles.append((key, handle, handle._node))
            return handle
        if type(value) in (tuple, list):
            parts = [self._stand_in(made, key, f"{place}[{i}]", part, tensors) for i, part in enumerate(value)]
            return value if _same(parts, list(value)) else type(value)(parts)
        return value

    # -- writing -----------------------------------------------------------------------------------------

    def conceal(self, by_user: bool) -> None:
        """Put the plain numbers back. What was assigned meanwhile is assigned again after each run.

        Args:
            by_user: Whether the code of the step, rather than an optimizer, has assigned: then a plain number may
                come from anywhere, so that it is warned of.
        """
        for made in self._exposed.values():
            for key, handle, node in made.handles:
                if handle._node is not node:
                    raise StateError(
                        f"the step changes the tensor {made.label}[{key!r}] in place. A traced step reads such a "
                        "tensor at each run; change it outside the step, or with a scheduler's step()."
                    )
            for key in made.plain.keys() - made.table.keys():
                raise StateError(f"the step removes {made.label}[{key!r}], which a replay cannot repeat.")
            for key, now in list(made.table.items()):
                if key not in made.plain and made.grows:
                    continue
                if key in made.entries and _same(now, made.entries[key]):
                    made.table[key] = made.plain[key]
                elif key not in made.plain or not (now is made.plain[key] or _equal_flags(now, made.plain[key])):
                    self._assigned(made, key, now, by_user)
        self._exposed.clear()

    def _assigned(self, made: _Exposed, key: str, now: Any, by_user: bool) -> None:
        target = f"{made.name}[{key!r}]"
        parts = list(now) if type(now) in (tuple, list) else [now]
        if any(isinstance(part, torch.Tensor) for part in parts):
            raise StateError(
                f"the step sets {made.label}[{key!r}] to a tensor ({user_line()}), and before it was "
                f"{made.plain.get(key, 'not there')!r}. Put a tensor there before training and change it in place."
            )
        made.table[key] = type(now)(map(plain_number, now)) if type(now) in (tuple, list) else plain_number(now)
        if key not in made.plain:
            self._scope.guard(f"({key!r} in {made.name})", False)
        if any(isinstance(part, HostScalar) for part in parts):
            code = ", ".join(map(code_of, parts))
            value = code if parts[0] is now else f"{type(now).__name__}(({code},))"
            self._host.act(f"{target} = {value}")
            self._written[made.name, key] = now
        elif not by_user:
            constant = plain_number(now)
            simple = is_number(constant) or isinstance(constant, _FLAG)
            value = code_of(constant) if simple else self._host.name(constant)
            self._host.act(f"{target} = {value}")
            self._written[made.name, key] = now
        else:
            warnings.warn(
                f"the traced step assigns {now!r} to {made.label}[{key!r}]. The assignment ran once, "
                "while the step was traced, and will not run again. Assign it outside the step, or call a "
                "scheduler's step() in it.",
                stacklevel=2,
            )

    def remember(self, table: Table) -> None:
        """Keep what is in `table` in case the trace fails."""
        if not any(table is known for known, _, _ in self._before):
            with outside_modes(), torch._C.DisableTorchFunction():
                tensors = [v for v in table.values() if isinstance(v, torch.Tensor) and v.numel() == 1]
                copies = [(t, t.detach().clone()) for t in tensors]
            self._before.append((table, dict(table), copies))

    def restore(self) -> None:
        """Put every table back as it was: the trace failed."""
        self._exposed.clear()
        for table, before, copies in self._before:
            table.clear()
            table.update(before)
            with torch.no_grad():
                for tensor, value in copies:
                    tensor.copy_(value)

    # -- work of the host ----------------------------------------------------------------------------------

    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], changes: list[Table]
    ) -> None:
        """Call `function` now, as part of the first run, and at this point of every later run.

        Args:
            function: Work of the host.
            args: Its arguments.
            kwargs: Its keyword arguments.
            changes: The tables that it may change.
        """
        self.conceal(by_user=True)
        for table in changes:
            self.remember(table)
        source = self.call_source(function, args, kwargs)
        self.paused = True
        try:
            with outside_modes(), torch._C.DisableTorchFunction():
                function(*map(plain_number, args), **{k: plain_number(v) for k, v in kwargs.items()})
        finally:
            self.paused = False
        self._change(source, changes)

    def call_source(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The source of a call of `function` in the host's code."""
        codes = [*map(self._argument, args), *(f"{key}={self._argument(value)}" for key, value in kwargs.items())]
        return f"{self._host.name(function, getattr(function, '__name__', ''))}({', '.join(codes)})"

    def _argument(self, value: Any) -> str:
        return code_of(value) if isinstance(value, HostScalar) or is_number(value) else self._host.name(value)

    def defer(self, who: str, changes: list[Table]) -> None:
        """From here on the numbers in the tables are known after the run only: `who` makes them from its results."""
        self.conceal(by_user=True)
        self._deferred.update((self._host.name(table), who) for table in changes)
        self._change("pass", changes)

    def _change(self, source: str, changes: list[Table]) -> None:
        names = list(map(self._host.name, changes))
        self._host.act(source, names)
        self._written = {place: value for place, value in self._written.items() if place[0] not in names}

    def check(self, codes: Iterable[str]) -> None:
        """Refuse the use of a number that is known after the run only.

        Raises:
            TraceError: one of `codes` uses it.
        """
        for code in codes:
            for variable in self._host.variables(code):
                if variable in self._unknown:
                    raise TraceError(
                        f"the step uses {self._host.describe(variable)} after {self._unknown[variable]}, which "
                        "takes values of the step: the new number is known only when the program has run. Call it "
                        "at the end of the step, or outside."
                    )


def _same(now: Any, entry: Any) -> bool:
    if type(now) is list and type(entry) is list:
        return len(now) == len(entry) and all(a is b for a, b in zip(now, entry, strict=True))
    return now is entry


def _equal_flags(now: Any, before: Any) -> bool:
    return type(now) is type(before) and isinstance(now, _FLAG) and now == before
