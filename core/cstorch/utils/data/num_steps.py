"""compute_num_steps: how many steps the bounds of a run allow."""

from __future__ import annotations

from typing import Any


def compute_num_steps(
    dataloader: Any,
    initial_step: int = 0,
    num_steps: int | None = None,
    max_steps: int | None = None,
    num_epochs: int | None = None,
    steps_per_epoch: int | None = None,
    grad_accum_steps: int = 1,
) -> int:
    """The least number of steps that any given bound allows.

    Args:
        dataloader: Its length is an epoch, in batches, where `steps_per_epoch` is not given.
        initial_step: Steps done before.
        num_steps: Steps of this run.
        max_steps: Steps of all runs together.
        num_epochs: Epochs of this run.
        steps_per_epoch: Batches of an epoch; at most the dataloader's length.
        grad_accum_steps: Batches accumulated in one step: an epoch has so many times fewer steps.

    Raises:
        ValueError: no bound is given, one is below 1, or nothing is left to run.
    """
    for name, value in (
        ("num_steps", num_steps),
        ("max_steps", max_steps),
        ("num_epochs", num_epochs),
        ("steps_per_epoch", steps_per_epoch),
        ("grad_accum_steps", grad_accum_steps),
    ):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}, expected at least 1.")
    if initial_step < 0:
        raise ValueError(f"initial_step is {initial_step}, expected at least 0.")
    bounds = []
    if num_steps is not None:
        bounds.append(num_steps)
    if max_steps is not None:
        if max_steps <= initial_step:
            raise ValueError(
                f"max_steps is {max_steps} and {initial_step} steps are done: there is nothing left to run."
            )
        bounds.append(max_steps - initial_step)
    if num_epochs is not None or not bounds:
        bounds.append((num_epochs or 1) * _epoch(dataloader, steps_per_epoch, grad_accum_steps))
    return min(bounds)


def _epoch(dataloader: Any, steps_per_epoch: int | None, grad_accum_steps: int) -> int:
    try:
        length = len(dataloader)
    except TypeError:
        if steps_per_epoch is None:
            raise ValueError("the dataloader has no length: give num_steps, max_steps or steps_per_epoch.") from None
        length = steps_per_epoch
    batches = length if steps_per_epoch is None else min(length, steps_per_epoch)
    steps = batches // grad_accum_steps
    if steps < 1:
        raise ValueError(f"an epoch of {batches} batches has no step of grad_accum_steps={grad_accum_steps} batches.")
    return steps
