"""A run on the terminal, while it goes on: steps, loss, rate, what is traced or written, and the time that is left."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import torch

from cstorch.device import CsxTensor
from cstorch.progress_line import ProgressLine
from cstorch.storage.background import saves_now
from cstorch.tracing import nest
from cstorch.tracing.context import context

logger = logging.getLogger("cstorch.data")

_WINDOW = 15  # looks at the run, 0.2 s apart, that the rate is of


class LiveView:
    """Context manager around a run: a line that a thread of its own writes anew, so the loop does nothing for it.

    The loss is the entry "loss" of what the latest traced step returned, or its first tensor of one element.

    Args:
        executor: The DataExecutor.
        stream: Where the line goes; sys.stderr by default. Nothing is written unless it is a terminal.
        clock: Seconds, for the tests.
    """

    def __init__(self, executor: Any, stream: Any = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._executor, self._clock = executor, clock
        self._line = ProgressLine(self.text, stream)
        self._looks: deque[tuple[float, int]] = deque(maxlen=_WINDOW)
        self._seen: dict[str, Any] = {}
        self._latest: tuple[str, Any] | None = None
        self.last_checkpoint: int | None = None
        self.steps = 0

    def __enter__(self) -> LiveView:
        self._start = self._clock()
        self._looks.append((self._start, 0))
        self._before, context.view = context.view, self
        self._line.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.__exit__(kind, error, trace)
        context.view = self._before
        seconds, loss = self._clock() - self._start, self._loss()
        how = "ended" if error is None else "left" if kind is GeneratorExit else f"failed ({type(error).__name__})"
        told = "" if loss is None else f", {loss}"
        logger.info("%s after %d of %d steps in %.1f s%s", how, self.steps, self._executor.num_steps, seconds, told)

    def returned(self, name: str, result: Any) -> None:
        """A traced step returned that, in a run whose steps are not compiled."""
        self._latest = (name, result)

    def text(self) -> str:
        """What the line says now."""
        backend, total = self._executor.backend, self._executor.num_steps
        if self._looks[0][1] == 0:  # the first step is traced and compiled, which says nothing of the others
            self._looks.clear()
        self._looks.append((self._clock(), self.steps))
        parts = [f"step {self.steps}/{total} ({self.steps / total:.0%})"]
        if backend.is_tracing:
            parts.append("tracing")
        elif not self.steps:
            parts.append("waiting for the first step")
        loss = self._loss()
        if loss is not None:
            parts.append(loss)
        (then, before), (now, steps) = self._looks[0], self._looks[-1]
        if steps > before and now > then:
            rate = (steps - before) / (now - then)
            parts.append(f"{rate:.1f} steps/s" if rate >= 1 else f"{1 / rate:.1f} s/step")
            parts.append(f"{_clock_time((total - steps) / rate)} left")
        saving = [f"saving {os.path.basename(name)}" for name in saves_now()]
        if saving:
            parts += saving
        elif self.last_checkpoint is not None:
            parts.append(f"checkpoint {self.last_checkpoint}")
        return "  ".join(parts)

    def _loss(self) -> str | None:
        for reference in self._executor.backend.loaded:
            program = reference()
            loss = None if program is None else _loss_in(program.result)
            value = None if loss is None else _value(loss)
            if program is not None and value is not None and self._seen.get(program.name) is not value:
                self._seen[program.name] = value
                self._latest = (program.name, value)
        if self._latest is None:
            return None
        name, result = self._latest
        loss = _loss_in(result)
        value = None if loss is None else _value(loss)
        return None if value is None else f"{name} {value.item():.4g}"


def _loss_in(result: Any) -> torch.Tensor | None:
    if isinstance(result, Mapping) and isinstance(result.get("loss"), torch.Tensor):
        result = result["loss"]
    for leaf in nest.leaves(result):
        if isinstance(leaf, torch.Tensor) and leaf.numel() == 1 and leaf.is_floating_point():
            return leaf
    return None


def _value(tensor: torch.Tensor) -> torch.Tensor | None:
    """What a handle stands for now; None before its program has run."""
    if isinstance(tensor, CsxTensor):
        return tensor._cell.value if tensor._cell is not None else None
    return tensor.detach()


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
