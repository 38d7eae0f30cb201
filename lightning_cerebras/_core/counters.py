"""Lightning's counters in a traced step: `global_step`, `current_epoch` and their like are numbers of each call.

A traced step is called with what they are now, and while it is traced they are the host scalars of that call: used as
data they are inputs, in a comparison they are guards, so that nothing stands still. Metrics of the trainer are tensors
of each call likewise, from when a step first reads them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import cstorch
import torch
from cstorch.where import user_line

from lightning_cerebras._core.private import COUNTERS, METRICS, is_of_lightning


class MetricsWanted(BaseException):
    """The step that is being traced reads metrics that its call was not given; it is no error of the user's."""


class Counters:
    """The counters of one trainer.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._read = attrgetter(*COUNTERS, "should_stop", "sanity_checking")
        self.has_logged = False

    def values(self) -> tuple[int, ...]:
        """What they are now; an argument for the traced step."""
        return tuple(map(int, self._read(self._trainer)))

    def metrics(self, names: list[str]) -> dict[str, dict[str, torch.Tensor]]:
        """The metrics that a step has read, as they are now; an argument for the traced step."""
        found = {name: getattr(self._trainer, name) for name in names}
        return {n: {key: torch.as_tensor(value) for key, value in metrics.items()} for n, metrics in found.items()}

    @contextlib.contextmanager
    def standing_in(self, numbers: tuple[Any, ...], metrics: dict[str, dict[str, torch.Tensor]]) -> Iterator[None]:
        """Within, the counters are `numbers`; afterwards they are as before, whatever the step has counted.

        Args:
            numbers: The argument that `values` made, as the traced step received it.
            metrics: The argument that `metrics` made, likewise.
        """
        self.has_logged = False
        trainer = self._trainer
        kind: Any = next(c for c in type(trainer).__mro__ if "sanity_checking" in vars(c))
        places = [(attrgetter(path.rpartition(".")[0])(trainer), path.rpartition(".")[2]) for path in COUNTERS]
        before = [(owner, dict(vars(owner))) for owner, _ in places]
        originals = {name: getattr(kind, name) for name in ("sanity_checking", *METRICS)}
        for (owner, name), number in zip(places, numbers, strict=False):
            setattr(owner, name, number)
        kind.sanity_checking = _seen_by_user(originals["sanity_checking"], lambda: bool(numbers[-1]))
        for name in METRICS:
            setattr(kind, name, _seen_by_user(originals[name], lambda name=name: self._metrics_of(name, metrics)))
        stopping, trainer.should_stop = trainer.should_stop, numbers[-2]
        try:
            yield
            if trainer.should_stop is not numbers[-2]:
                cstorch.step_closure(setattr)(trainer, "should_stop", bool(trainer.should_stop))
        finally:
            trainer.should_stop = stopping
            for name, original in originals.items():
                setattr(kind, name, original)
            for owner, values in before:
                vars(owner).update(values)

    def _metrics_of(self, name: str, metrics: dict[str, dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        if self.has_logged:
            raise ValueError(
                f"the step reads trainer.{name} at {user_line()}, after it has logged. A step is traced once with "
                "accelerator='csx', and what it logs is there after it has run. Read it before self.log, in a hook "
                "that runs at each batch (on_train_batch_end), or in a function decorated with cstorch.step_closure."
            )
        if name not in metrics:
            raise MetricsWanted(name)
        return dict(metrics[name])


def _seen_by_user(original: Any, instead: Any) -> property:
    """The property, with another getter for the user's code than for Lightning's."""

    def read(trainer: Any) -> Any:
        return original.fget(trainer) if is_of_lightning(sys._getframe(1)) else instead()

    return property(read, original.fset)
