"""What is going on in this process: the backend, the trace being recorded, the iteration of the loop.

The only global state of cstorch. `context.reset()` puts it back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Recording(Protocol):
    """A trace that takes the closures called in it."""

    def add_effect(
        self, kind: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Record host work to be repeated after each run."""
        ...


class Iteration:
    """The iteration of an executor's loop, collecting the closures that run at its end.

    Attributes:
        is_checkpoint: Whether checkpoint closures run.
        fetches: Whether step closures run.
    """

    __slots__ = ("_queue", "fetches", "is_checkpoint")

    def __init__(self) -> None:
        self.is_checkpoint = False
        self.fetches = True
        self._queue: list[tuple[Callable[..., Any], Any, Any]] = []

    def runs(self, kind: str) -> bool:
        """Whether closures of this kind run in this iteration."""
        return self.is_checkpoint if kind == "checkpoint" else self.fetches

    def queue(self, kind: str, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Run `function` at the end of the iteration, when its kind runs in it."""
        if self.runs(kind):
            self._queue.append((function, args, kwargs))

    def finish(self) -> None:
        """Run what was queued, first in, first out. An exception leaves the rest undone and surfaces."""
        if not self._queue:
            return
        queue, self._queue = self._queue, []
        context.run_closures(queue)


class Context:
    """Holds the current backend, recording and iteration.

    Attributes:
        in_closure: Whether host work at the end of a step is going on.
        copies_to_host: Whether `tensor.cpu()` in a step is the value that the host has after each run, not an error.
        kinds: The types of the backends that this process has made, in their order.
        validation: Collects the programs of `cstorch validate`; None otherwise.
        scope: The `name_scope` around, "" outside of any.
        pol: The level of the `pol` around; None outside of any.
        profile: The profile of operations that is on; None otherwise.
        view: Shows the run on the terminal; None unless that was asked for.
        summaries: Takes what steps summarize in a loop that is no executor's; None where nothing does.
    """

    backend: Any
    recording: Recording | None
    iteration: Iteration | None
    executor: Any
    in_closure: bool
    copies_to_host: bool
    kinds: dict[str, None]
    validation: Any
    scope: str
    pol: int | None
    profile: Any
    view: Any
    summaries: Any
    last_checkpoint: str | None

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything, as at the start of the process."""
        self.backend = self.recording = self.iteration = self.executor = None
        self.validation = self.view = self.pol = self.profile = self.summaries = None
        self.scope = ""
        self.kinds = {}
        self.in_closure = self.copies_to_host = False
        self.last_checkpoint = None

    def run_closures(self, calls: list[tuple[Callable[..., Any], Any, Any]]) -> None:
        """Make calls of (function, args, kwargs) as closures: what they call that is a closure acts at once."""
        before, self.in_closure = self.in_closure, True
        try:
            for function, args, kwargs in calls:
                function(*args, **kwargs)
        finally:
            self.in_closure = before


context = Context()
"""The context of this process."""
