"""The loss scale of `cerebras.pytorch.amp`: fixed, or moved by the overflows of traced steps."""

from __future__ import annotations

from typing import Any

import torch

from cstorch.backend import current_torch_device
from cstorch.tracing.loss_scale import LossScale, parameters_of


class GradScaler(LossScale):
    """Scales losses, so that small gradients are not lost in half precision.

    With "dynamic", a step whose gradients are not finite leaves weights and optimizer as they were and halves the
    scale; after `steps_per_increase` steps without overflow the scale doubles. All of it is part of the traced step.

    Args:
        loss_scale: "dynamic", a fixed number, or None for no scale.
        init_scale: The first scale of "dynamic"; default 2**15.
        steps_per_increase: Steps without overflow until the scale doubles; default 2000.
        min_loss_scale: The scale does not fall below it; default 2**-14.
        max_loss_scale: The scale does not rise above it; default 2**15.
        overflow_tolerance: The scale is halved only when more than this part of the steps since it last moved
            overflowed, 0 to 1; default 0.
        max_gradient_norm: Gradients are clipped to this norm before the step; default not.

    Raises:
        ValueError: `loss_scale` or `overflow_tolerance` is something else.
    """

    def __init__(
        self,
        loss_scale: str | float | None = None,
        init_scale: float | None = None,
        steps_per_increase: int | None = None,
        min_loss_scale: float | None = None,
        max_loss_scale: float | None = None,
        overflow_tolerance: float = 0.0,
        max_gradient_norm: float | None = None,
    ) -> None:
        is_number = isinstance(loss_scale, (int, float)) and not isinstance(loss_scale, bool) and loss_scale > 0
        if loss_scale not in (None, "dynamic") and not is_number:
            raise ValueError(f'loss_scale is {loss_scale!r}. Expected None, "dynamic" or a number above 0.')
        if not 0 <= overflow_tolerance <= 1:
            raise ValueError(f"overflow_tolerance is {overflow_tolerance!r}. Expected a part from 0 to 1.")
        self.is_dynamic = loss_scale == "dynamic"
        first = (2.0**15 if init_scale is None else init_scale) if self.is_dynamic else float(loss_scale or 1)
        super().__init__(first, growth_interval=steps_per_increase or 2000, device=current_torch_device())
        self._bounds = (
            2.0**-14 if min_loss_scale is None else min_loss_scale,
            max(2.0**15, first) if max_loss_scale is None else max_loss_scale,
        )
        self._tolerance, self.max_gradient_norm = overflow_tolerance, max_gradient_norm
        for name in ("_steps", "_overflowed"):
            self._state[name] = torch.zeros((), dtype=torch.int32).to(self._device)

    def get_scale(self) -> torch.Tensor:
        """The scale, a 0-d float32 tensor."""
        return self._state["scale"]

    def step(self, optimizer: torch.optim.Optimizer, **kwargs: Any) -> None:
        """`optimizer.step()` with unscaled gradients; without effect where "dynamic" finds an overflow.

        Args:
            optimizer: The optimizer.
            kwargs: What its `step` takes.

        Raises:
            OptimizerError: "dynamic", and the step changes what cannot be taken back.
        """
        if id(optimizer) not in self._overflows:
            self.unscale_(optimizer)
        if self.max_gradient_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters_of(optimizer), self.max_gradient_norm)
        if not self.is_dynamic:
            optimizer.step(**kwargs)
        else:
            super().step(optimizer, **kwargs)

    def update(self) -> None:
        """Set the scale of the next step."""
        if not self.is_dynamic:
            self._overflows.clear()
            return
        state, overflow = self._state, self._any_overflow()
        scale, good = state["scale"], state["_growth_tracker"]
        steps, overflowed = state["_steps"] + 1, state["_overflowed"] + overflow
        shrinks = overflow & (overflowed > self._tolerance * steps)
        good = torch.where(overflow, 0, good + 1)
        grows = good == state["growth_interval"]
        moved = torch.where(grows, scale * state["growth_factor"], scale)
        moved = torch.where(shrinks, scale * state["backoff_factor"], moved)
        scale.copy_(moved.clamp(*self._bounds))
        state["_growth_tracker"].copy_(torch.where(grows, 0, good))
        state["_steps"].copy_(torch.where(grows | shrinks, 0, steps))
        state["_overflowed"].copy_(torch.where(grows | shrinks, 0, overflowed))


def optimizer_step(
    loss: torch.Tensor,
    optimizer: torch.optim.Optimizer,
    grad_scaler: GradScaler,
    max_gradient_norm: float | None = None,
    max_gradient_value: float | None = None,
    max_gradient_val: float | None = None,
) -> None:
    """Backward of the scaled loss, unscale, clip, step, update of the scale, and gradients set to none.

    Args:
        loss: The loss, not scaled.
        optimizer: The optimizer.
        grad_scaler: The loss scale.
        max_gradient_norm: Gradients are clipped to this norm; default not.
        max_gradient_value: Each element of the gradients is clipped to this size; default not.
        max_gradient_val: Another name of it.

    Raises:
        ValueError: norm and value are both given.
    """
    value = max_gradient_val if max_gradient_value is None else max_gradient_value
    if max_gradient_norm is not None and value is not None:
        raise ValueError(
            f"max_gradient_norm is {max_gradient_norm!r} and max_gradient_value is {value!r}. Give one of them."
        )
    grad_scaler.scale(loss).backward()
    grad_scaler.unscale_(optimizer)
    parameters = parameters_of(optimizer)
    if max_gradient_norm is not None:
        torch.nn.utils.clip_grad_norm_(parameters, max_gradient_norm)
    if value is not None:
        torch.nn.utils.clip_grad_value_(parameters, value)
    grad_scaler.step(optimizer)
    grad_scaler.update()
    optimizer.zero_grad()
