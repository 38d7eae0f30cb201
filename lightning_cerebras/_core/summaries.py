"""`cstorch.summarize_scalar` and `summarize_tensor` in the steps of a Trainer: they reach its loggers."""

from __future__ import annotations

from typing import Any

from lightning_cerebras._core.log_folder import log_folder, root_folder
from lightning_cerebras._core.private import logged_step


class TrainerSummaries:
    """What `cstorch.summaries` calls with the values of each step.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._folder = log_folder(trainer) or root_folder(trainer)

    def scalar(self, name: str, value: float) -> None:
        """Log a number."""
        where = self._where(name)
        if where is not None:
            for logger in self._trainer.loggers:
                logger.log_metrics({where[0]: value}, step=where[1])

    def tensor(self, name: str, value: Any) -> None:
        """Keep a tensor in the log folder of the first logger that has one; no logger takes a whole tensor itself."""
        from cstorch.utils.tensorboard.tensors import write_tensor

        where = self._where(name)
        if where is not None and self._trainer.is_global_zero:
            write_tensor(self._folder, where[0], value, where[1])

    def _where(self, name: str) -> tuple[str, int] | None:
        """The name and the step to write at; None where this step is not to be logged."""
        if not self._trainer.loggers or self._trainer.fast_dev_run:
            return None
        stage, step, is_logged = logged_step(self._trainer)
        return (name if stage == "train" else f"{stage}/{name}", step) if is_logged else None
