"""What is different in Lightning and in the module while one of their steps is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from cstorch.tracing.context import context

from lightning_cerebras._core.counters import Counters
from lightning_cerebras._core.logs import taped
from lightning_cerebras._core.metrics import HostMetrics
from lightning_cerebras._core.private import TRACED_HOOKS, is_of_lightning
from lightning_cerebras._core.summaries import TrainerSummaries
from lightning_cerebras._core.watching import Watching


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
        self._watching = Watching(trainer, module)
        self._hooks = _traced_hooks(trainer, module)
        context.summaries = TrainerSummaries(trainer)

    def close(self) -> None:
        """The run is over."""
        self._metrics.release()
        context.summaries = None

    def inputs(self) -> tuple[tuple[int, ...], tuple[Any, ...], str]:
        """What each call of a traced step must be given for `tracing`; the hooks in it are for cstorch to look at."""
        return self._counters.values(), self._hooks, self._watching.key()

    @contextlib.contextmanager
    def tracing(self, inputs: tuple[tuple[Any, ...], tuple[Any, ...], str]) -> Iterator[None]:
        """The surroundings of the step's Python.

        Args:
            inputs: What `inputs` returned, as the traced step received it.
        """
        with (
            taped(self._trainer, self._module),
            self._counters.standing_in(inputs[0]),
            self._metrics.called_later(),
            self._watching.called_later(),
            _copies_to_host(),
        ):
            yield


@contextlib.contextmanager
def _copies_to_host() -> Iterator[None]:
    """Within, `self.outputs.append(y.cpu())` and the like get the values of each run."""
    before, context.copies_to_host = context.copies_to_host, True
    try:
        yield
    finally:
        context.copies_to_host = before


def _traced_hooks(trainer: Any, module: Any) -> tuple[Any, ...]:
    """The hooks that run as part of a traced step, as far as the user wrote them."""
    found = [getattr(owner, name, None) for owner in (module, *trainer.callbacks) for name in TRACED_HOOKS]
    return tuple(hook for hook in found if hook is not None and not is_of_lightning(hook))
