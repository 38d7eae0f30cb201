"""A profile of the operations of some steps of a run (`cerebras.pytorch.profiler`)."""

from __future__ import annotations

import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import profiler as of_torch

from cstorch.legacy import warn_of_old
from cstorch.tracing.context import context


@dataclass(frozen=True)
class schedule:  # noqa: N801  the reference's name
    """Which steps are profiled, counted from 1 over the runs within the profile.

    Attributes:
        start_step: The first; -1 for none.
        end_step: The last; -1 for none.

    Raises:
        ValueError: the end lies before the start, or one is 0.
    """

    start_step: int = -1
    end_step: int = -1

    def __post_init__(self) -> None:
        if not self.is_off and not 1 <= self.start_step <= self.end_step:
            raise ValueError(
                f"schedule got start_step={self.start_step} and end_step={self.end_step}, expected steps of at least "
                "1 with the end not before the start, or -1 for both."
            )

    @property
    def is_off(self) -> bool:
        """Whether no step is profiled."""
        return self.start_step == self.end_step == -1


class profile:  # noqa: N801  the reference's name
    """Profiles the operations of the steps that executors run within (`cerebras.pytorch.profiler.profile`).

    It is `torch.profiler` on the processor: a program that is interpreted shows every operation, a compiled one those
    that it leaves to PyTorch's kernels. Times are in microseconds, as in every chrome trace. A profile that ends before
    the first step of its schedule warns.

    Args:
        schedule: Which steps; default none.
        on_trace_ready: Called with the profile when the last of them has ended.
        host_activities: Accepted without effect: numbers of servers of a cluster.

    Attributes:
        op_profiler_json: The chrome trace as JSON text; None before there is one.
        appliance_response: The same; None before.

    Raises:
        RuntimeError: when entered within another profile.
    """

    def __init__(
        self,
        schedule: schedule | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
        host_activities: list[Any] | None = None,
    ) -> None:
        self.schedule = schedule
        self.on_trace_ready = on_trace_ready
        if host_activities:
            warn_of_old(f"profile(host_activities={host_activities!r})", "It has no effect: there are no servers here.")
        self.op_profiler_json: str | None = None
        self._running: of_torch.profile | None = None
        self._done: of_torch.profile | None = None
        self._steps = 0

    @property
    def appliance_response(self) -> str | None:
        """The chrome trace as JSON text, which old programs only test for."""
        return self.op_profiler_json

    def __enter__(self) -> profile:
        if context.profile is not None:
            raise RuntimeError("a cstorch.profiler.profile is entered within another. End that one first.")
        context.profile = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context.profile = None
        self._stop()
        wanted = self.schedule is not None and not self.schedule.is_off
        if wanted and self._done is None and error is None:
            warnings.warn(
                f"no step was profiled: {self._steps} ran within the profile, and {self.schedule} begins later. Choose "
                "an earlier start_step, or run more steps within.",
                stacklevel=2,
            )

    def at_step(self, step: int) -> None:
        """An executor begins a step; called by executors.

        Args:
            step: Counted from 1 in its run.
        """
        self._steps += 1
        if self.schedule is None or self.schedule.is_off:
            return
        if self._steps == self.schedule.end_step + 1:
            self._stop()
        if self._steps == self.schedule.start_step:
            self._running = of_torch.profile(activities=[of_torch.ProfilerActivity.CPU])
            self._running.start()

    def _stop(self) -> None:
        if self._running is None:
            return
        self._running.stop()
        self._done, self._running = self._running, None
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            self._done.export_chrome_trace(path)
            self.op_profiler_json = Path(path).read_text()
        if self.on_trace_ready is not None:
            self.on_trace_ready(self)

    def get_summary(self, sort_by: str = "self_cpu_time_total", row_limit: int = 30) -> str:
        """A table of the operations with their times and counts; a sentence where nothing was profiled.

        Args:
            sort_by: A column of `torch.profiler`'s tables.
            row_limit: Rows at most.
        """
        if self._done is None:
            return "No step was profiled."
        return str(self._done.key_averages().table(sort_by=sort_by, row_limit=row_limit))

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the chrome trace, for chrome://tracing and Perfetto; one without events where nothing was profiled.

        Args:
            path: Of the file.
        """
        Path(path).write_text(self.op_profiler_json or json.dumps({"traceEvents": []}))


def tensorboard_trace_handler(dir_name: str | os.PathLike[str]) -> Callable[[profile], None]:
    """For `on_trace_ready`: writes the trace where TensorBoard's profiler plugin looks for it.

    Args:
        dir_name: The folder of the logs; made if it is not there.
    """

    def handle(made: profile) -> None:
        folder = Path(dir_name)
        folder.mkdir(parents=True, exist_ok=True)
        made.export_chrome_trace(folder / f"cstorch.{time.time_ns()}.pt.trace.json")

    return handle
