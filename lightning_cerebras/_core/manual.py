"""One step of manual optimisation as one program: all that `training_step` does, whatever optimizers it steps.

What the step does to Lightning's own counting, it does again after each run: a tick for each `optimizer.step()` that
the traced step made, so that global_step, max_steps and checkpoints follow. `scheduler.step()` is repeated by cstorch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import cstorch
import torch

from lightning_cerebras._core.own_batches import fetch, hand_over
from lightning_cerebras._core.step_context import StepContext


class ManualOptimization:
    """Traces and replays the training step of one `Trainer.fit`.

    Args:
        strategy: The CSX strategy.
        trainer: The trainer.
        module: The LightningModule.
        context: The surroundings of its steps.
        inner: What runs the module's `training_step`.
    """

    def __init__(self, strategy: Any, trainer: Any, module: Any, context: StepContext, inner: Any) -> None:
        self.strategy, self.trainer, self.module = strategy, trainer, module
        self._inner = inner
        self._context = context
        self._values: Any = None

        self._is_in_step = False

        @cstorch.trace
        def training_step(inputs: Any, arguments: Any) -> None:
            keep = cstorch.step_closure(self._keep)
            with self._inside(inputs):
                keep(hand_over("training_step", arguments, self._inner))

        @cstorch.trace
        def optimizer_step(inputs: Any, optimizer: Any, closure: Any, kwargs: dict[str, Any]) -> None:
            keep = cstorch.step_closure(self._keep)
            with self._inside(inputs):
                keep(self._update(optimizer, closure, kwargs))

        self._traced_step, self._traced_update = training_step, optimizer_step

    def close(self) -> None:
        """Nothing was taken over."""

    def training_step(self, *args: Any) -> Any:
        """`Strategy.training_step`: the whole step; what it returned, with its values."""
        self._context.call(self._traced_step, fetch(args))
        values, self._values = self._values, None
        return values

    def optimizer_step(self, optimizer: Any, closure: Any, **kwargs: Any) -> Any:
        """`Strategy.optimizer_step`: part of the step that is being traced, or, from another hook, one of its own."""
        if self._is_in_step:
            return self._update(optimizer, closure, kwargs)
        self._context.call(self._traced_update, optimizer, closure, kwargs)
        values, self._values = self._values, None
        return values

    def _update(self, optimizer: Any, closure: Any, kwargs: dict[str, Any]) -> Any:
        plugin = self.strategy.precision_plugin
        return plugin.optimizer_step(optimizer, model=self.module, closure=closure, **kwargs)

    @contextlib.contextmanager
    def _inside(self, inputs: Any) -> Iterator[None]:
        self._is_in_step = True
        try:
            with self._context.tracing(inputs), self._ticking(), torch.enable_grad():
                yield
        finally:
            self._is_in_step = False

    @contextlib.contextmanager
    def _ticking(self) -> Iterator[None]:
        """Within, Lightning's counting around `optimizer.step()` is also repeated after each run."""
        before = []
        for optimizer in self.trainer.strategy._lightning_optimizers:
            before.append((optimizer, optimizer._on_before_step, optimizer._on_after_step))
            optimizer._on_before_step = _now_and_later(optimizer._on_before_step)
            optimizer._on_after_step = _now_and_later(optimizer._on_after_step)
        try:
            yield
        finally:
            for optimizer, on_before, on_after in before:
                optimizer._on_before_step, optimizer._on_after_step = on_before, on_after

    def _keep(self, values: Any) -> None:
        self._values = values


def _now_and_later(count: Callable[[], None]) -> Callable[[], None]:
    later = cstorch.step_closure(count)

    def both() -> None:
        count()
        later()

    return both
