"""A learning-rate scheduler stepped inside a traced step: host work, done at its place in every run.

`scheduler.step()` runs while the step is traced, as part of the first run, and before the program in every later
one; what the step read before it keeps the old numbers, what it reads afterwards has the new. A scheduler that is
given values of the step (`ReduceLROnPlateau.step(loss)`) can act only after the program. Whatever attribute of a
scheduler the step reads, `last_epoch` for one, is a number of each run or a guard.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import lr_scheduler

from cstorch.device import CsxTensor
from cstorch.tracing import nest
from cstorch.tracing.context import Recording
from cstorch.tracing.host_tables import HostTables, Table


@contextlib.contextmanager
def scheduler_steps(tables: HostTables, recording: Recording) -> Iterator[None]:
    """Within, `step` and the attributes of all schedulers are those of a traced step."""
    originals: list[tuple[type, Any]] = []
    pending: list[type] = [lr_scheduler.LRScheduler]
    seen: set[type] = set()
    while pending:
        cls = pending.pop()
        if cls in seen:
            continue
        seen.add(cls)
        pending.extend(cls.__subclasses__())
        if "step" in cls.__dict__:
            originals.append((cls, cls.__dict__["step"]))
    plain = object.__getattribute__

    def look(scheduler: Any, name: str) -> Any:
        if not tables.paused and not name.startswith("__"):
            table = plain(scheduler, "__dict__")
            if name in table:
                tables.expose(table, type(scheduler).__name__, tensors=True)
                tables.guard_flag(table, name)
        return plain(scheduler, name)

    for cls, original in originals:
        cls.step = _Step(original, tables, recording)  # type: ignore[attr-defined]
    lr_scheduler.LRScheduler.__getattribute__ = look  # type: ignore[method-assign]
    try:
        yield
    finally:
        del lr_scheduler.LRScheduler.__getattribute__
        for cls, original in originals:
            cls.step = original  # type: ignore[attr-defined]


class _Step:
    """Stands for a scheduler's `step`."""

    def __init__(self, original: Callable[..., Any], tables: HostTables, recording: Recording) -> None:
        self._original, self._tables, self._recording = original, tables, recording

    def __get__(self, scheduler: Any, owner: Any = None) -> Callable[..., Any]:
        if scheduler is None or self._tables.paused:
            return self._original if scheduler is None else self._original.__get__(scheduler)

        def step(*args: Any, **kwargs: Any) -> None:
            changes = _tables_of(scheduler)
            if any(isinstance(leaf, CsxTensor) for leaf in nest.leaves((args, kwargs))):
                self._recording.add_effect("host", self._original, (scheduler, *args), kwargs)
                self._tables.defer(f"{type(scheduler).__name__}.step()", changes)
            else:
                self._tables.call(self._original, (scheduler, *args), kwargs, changes)

        return step


def _tables_of(scheduler: Any) -> list[Table]:
    """The dicts that a step of `scheduler` may change: its own, those of schedulers in it, the param_groups."""
    found: list[Table] = [vars(scheduler)]
    for value in vars(scheduler).values():
        if isinstance(value, torch.optim.Optimizer):
            found += vars(value)["param_groups"]
        for inner in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(inner, lr_scheduler.LRScheduler) and inner is not scheduler:
                found += _tables_of(inner)
    return found
