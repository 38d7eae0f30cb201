"""The optimizer closure of a traced step: calling it, or stepping an optimizer with it, runs the step's program."""

from __future__ import annotations

from typing import Any

import torch

NOT_EXECUTED = "The closure hasn't been executed."
"""What Lightning says on every accelerator."""


class StepClosure:
    """What the loop and the user's `optimizer_step` know as the optimizer closure.

    Args:
        automatic: The AutomaticOptimization that runs the step.
        kwargs: The arguments of `training_step`.
        optimizer: The optimizer of the step.
        batch_idx: The index of the batch.
        zero: Whether gradients are cleared before the backward pass.
        backward: Whether there is a backward pass.
    """

    def __init__(
        self,
        automatic: Any,
        kwargs: dict[str, Any],
        optimizer: Any,
        batch_idx: int,
        zero: bool,
        backward: bool,
    ) -> None:
        self.automatic = automatic
        self.kwargs, self.optimizer, self.batch_idx = kwargs, optimizer, batch_idx
        self.zero, self.backward = zero, backward
        self._result: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """Forward and backward without the optimizer; the loss."""
        self._result = self.automatic.run(self, None)
        loss: torch.Tensor | None = self._result.loss
        return loss

    def consume_result(self) -> Any:
        """The ClosureResult of the step, once."""
        if self._result is None:
            raise self.automatic.strategy.accelerator.misconfiguration(
                f"{NOT_EXECUTED} A LightningModule.optimizer_step override must call "
                "optimizer.step(closure=optimizer_closure), or optimizer_closure() itself."
            )
        result, self._result = self._result, None
        return result
