"""`cstorch.summarize_scalar` and `summarize_tensor`: values of a step for the SummaryWriter of its executor."""

from __future__ import annotations

from typing import Any

import torch

from cstorch.tracing.closures import step_closure
from cstorch.tracing.context import context
from cstorch.where import user_line


def summarize_scalar(name: str, tensor: torch.Tensor | float) -> None:
    """Write a scalar to TensorBoard at each step (`cerebras.pytorch.summarize_scalar`).

    Call it in a traced step, in a module's forward for example, or in the body of an executor's loop. The value is
    written by the SummaryWriter that was given to the executor, at its `base_step` plus the iteration, when the
    activations of the step are fetched. Without a writer nothing is written. In the steps of a Trainer on csx the value
    goes to its loggers, every `log_every_n_steps` steps; in evaluation with the stage before its name ("validate/"), at
    the number of the batch.

    Args:
        name: Its name in TensorBoard; slashes make groups.
        tensor: A tensor of one element, or a number.

    Raises:
        ValueError: the tensor has more elements than one.
    """
    if isinstance(tensor, torch.Tensor) and tensor.numel() != 1:
        raise ValueError(
            f"summarize_scalar({name!r}, ...) got a tensor of shape {tuple(tensor.shape)} at {user_line()}, expected "
            "one element. Reduce it, for example with .mean(), or keep it whole with cstorch.summarize_tensor."
        )
    _write_scalar(name, tensor)


def summarize_tensor(name: str, tensor: torch.Tensor) -> None:
    """Keep a whole tensor at each step (`cerebras.pytorch.summarize_tensor`).

    Works as `summarize_scalar`; the tensor is read back with `utils.tensorboard.SummaryReader.read_tensor`, from the
    log folder of its logger where a Trainer runs the step.

    Args:
        name: Its name; slashes make groups.
        tensor: A tensor of any shape and dtype.

    Raises:
        TypeError: it is not a tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"summarize_tensor({name!r}, ...) got a {type(tensor).__name__} at {user_line()}, expected a tensor. For a "
            "number say cstorch.summarize_scalar."
        )
    _write_tensor(name, tensor)


@step_closure
def _write_scalar(name: str, value: Any) -> None:
    writer = _writer()
    if context.executor is None and context.summaries is not None:
        context.summaries.scalar(name, float(value))
    if writer is not None:
        writer.add_scalar(name, float(value), writer.base_step + context.executor.iteration)


@step_closure
def _write_tensor(name: str, value: torch.Tensor) -> None:
    writer = _writer()
    if context.executor is None and context.summaries is not None:
        context.summaries.tensor(name, value)
    if writer is not None:
        writer.add_tensor(name, value, writer.base_step + context.executor.iteration)


def _writer() -> Any:
    executor = context.executor
    return executor.writer if executor is not None and executor.backend.is_main_process else None
