"""Profiler activities of cstorch and its plugins over training batches, and a callback that logs them."""

from __future__ import annotations

from typing import Any

from lightning_cerebras._core.private import logged_step


def numbers_of(profiler: Any) -> dict[str, float]:
    """The numbers among the values of a `cstorch.utils.profiler.Profiler`.

    Args:
        profiler: The profiler, or None.

    Returns:
        `csx.<activity>`, and `csx.<activity>.<entry>` for the entries of those that have several.
    """
    found = {}
    for name, value in (profiler.compute() if profiler else {}).items():
        entries = {f"{name}.{key}": entry for key, entry in value.items()} if isinstance(value, dict) else {name: value}
        found.update({f"csx.{key}": float(x) for key, x in entries.items() if isinstance(x, (int, float))})
    return found


def samples_of(batch: Any) -> int:
    """How many samples a batch has; 1 where it does not say."""
    from cstorch.utils.data.batch_size import infer_batch_size

    return infer_batch_size(batch) or 1


class StepProfilerMixin:
    """Measures training steps, on every accelerator, and logs the numbers every `log_every_n_steps` steps.

    Args:
        activities: Activity classes, or names of those that plugins register, beside the rate of samples. None: the
            rate alone.

    Attributes:
        profiler: The `cstorch.utils.profiler.Profiler` of the latest fit, with each activity as an attribute; None
            before the first.
    """

    def __init__(self, activities: list[Any] | None = None) -> None:
        super().__init__()
        self._activities = activities
        self.profiler: Any = None

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Find the activities, so that an unknown name is an error before anything runs."""
        if stage == "fit":
            from cstorch.utils.profiler import Profiler

            self.profiler = Profiler(self._activities)

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """The clock starts."""
        self.profiler.start()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count the batch, and log."""
        self.profiler.add(samples_of(batch))
        _, step, is_logged = logged_step(trainer)
        if is_logged:
            for logger in trainer.loggers:
                logger.log_metrics(numbers_of(self.profiler), step=step)
