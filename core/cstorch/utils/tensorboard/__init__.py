"""TensorBoard event files (`cerebras.pytorch.utils.tensorboard`)."""

from __future__ import annotations

from typing import Any

from torch.utils import tensorboard as _torch_tensorboard

__all__ = ["SummaryWriter"]


class SummaryWriter(_torch_tensorboard.SummaryWriter):
    """torch.utils.tensorboard.SummaryWriter with a base step (`cerebras.pytorch.utils.tensorboard.SummaryWriter`).

    Args:
        *args: Passed to torch's writer.
        base_step: The step that summaries of a run's first step are written at.
        **kwargs: Passed to torch's writer.
    """

    def __init__(self, *args: Any, base_step: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.base_step = base_step
