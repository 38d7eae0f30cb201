"""SummaryWriter: torch's writer of event files, with a base step and whole tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils import tensorboard as _torch_tensorboard

from cstorch.tracing.closures import value_of
from cstorch.utils.tensorboard.tensors import write_tensor


class SummaryWriter(_torch_tensorboard.SummaryWriter):
    """torch.utils.tensorboard.SummaryWriter with a base step (`cerebras.pytorch.utils.tensorboard.SummaryWriter`).

    Args:
        *args: Passed to torch's writer; the first is `log_dir`.
        base_step: The step that summaries of a run's first step are written at, by `cstorch.summarize_scalar` and
            `cstorch.summarize_tensor`.
        **kwargs: Passed to torch's writer.
    """

    def __init__(self, *args: Any, base_step: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.base_step = base_step

    @property
    def cs_events_dir(self) -> str:
        """The folder of the run, below which tensors are kept."""
        return str(self.log_dir)

    def add_tensor(  # type: ignore[override]  # torch's has other names and keeps numbers of numpy's dtypes only
        self, name: str, tensor: torch.Tensor, step: int | None = None
    ) -> Path:
        """Keep a whole tensor, bit for bit in its own dtype, for `SummaryReader.read_tensor`.

        It becomes a file of its own below `tensors/` in the folder of the run, as `cstorch.save` writes it.

        Args:
            name: Its name; slashes make groups.
            tensor: A tensor whose contents are there: in a step closure, or on the cpu.
            step: The step it is of; `base_step` by default.

        Returns:
            The file.

        Raises:
            TypeError: it is not a tensor, or the step is not an int.
            ValueReadError: the tensor's contents are not there, as in a traced step: call
                `cstorch.summarize_tensor(name, tensor)` there.
        """
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"add_tensor({name!r}, ...) got a {type(tensor).__name__}, expected a tensor. For a number say "
                "add_scalar, or torch.as_tensor(value)."
            )
        if not isinstance(step, (int, type(None))):
            raise TypeError(f"add_tensor({name!r}, ...) got the step {step!r}, expected an int.")
        return write_tensor(self.log_dir, name, value_of(tensor), self.base_step if step is None else int(step))
