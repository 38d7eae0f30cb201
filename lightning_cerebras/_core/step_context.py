"""What is different in Lightning and in the module while one of their steps is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from cstorch.tracing.context import context

from lightning_cerebras._core.counters import Counters, MetricsWanted
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
        self._metrics_read: dict[Any, list[str]] = {}
        self._watching = Watching(trainer, module)
        self._hooks = _traced_hooks(trainer, module)
        context.summaries = TrainerSummaries(trainer)

    def close(self) -> None:
        """The run is over."""
        self._metrics.release()
        context.summaries = None

    def call(self, traced: Any, *arguments: Any) -> None:
        """Call a traced step with what its `tracing` needs before its arguments: the hooks are for cstorch to see."""
        counters, read = self._counters, self._metrics_read.get(traced, [])
        try:
            traced((counters.values(), counters.metrics(read), self._hooks, self._watching.key()), *arguments)
        except MetricsWanted as wanted:
            torch.set_rng_state(self._generator)
            self._metrics_read[traced] = [*read, str(wanted)]
            self.call(traced, *arguments)

    @contextlib.contextmanager
    def tracing(self, inputs: tuple[Any, ...]) -> Iterator[None]:
        """The surroundings of the step's Python.

        Args:
            inputs: What `call` gave the traced step, as it received it.
        """
        self._generator = torch.get_rng_state()
        with (
            taped(self._trainer, self._module, self._counters),
            self._counters.standing_in(inputs[0], inputs[1]),
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
