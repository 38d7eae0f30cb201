"""What is different in Lightning and in the module while one of their steps is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from lightning_cerebras._core.counters import Counters
from lightning_cerebras._core.logs import taped
from lightning_cerebras._core.metrics import HostMetrics


class StepContext:
    """Makes the traced steps of one run: logging is taped, counters are numbers of the call, metrics are host calls.

    Args:
        trainer: The trainer.
        module: The LightningModule, on its device.
    """

    def __init__(self, trainer: Any, module: Any) -> None:
        self._trainer, self._module = trainer, module
        self._counters, self._metrics = Counters(trainer), HostMetrics(module)
        self._metrics.settle()

    def close(self) -> None:
        """The run is over."""
        self._metrics.release()

    def numbers(self) -> tuple[int, ...]:
        """What each call of a traced step must be given for `tracing`."""
        return self._counters.values()

    @contextlib.contextmanager
    def tracing(self, numbers: tuple[Any, ...]) -> Iterator[None]:
        """The surroundings of the step's Python.

        Args:
            numbers: What `numbers` returned, as the traced step received it.
        """
        with (
            taped(self._trainer, self._module),
            self._counters.standing_in(numbers),
            self._metrics.called_later(),
        ):
            yield
