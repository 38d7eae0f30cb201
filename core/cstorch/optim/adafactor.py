"""Adafactor: the mean square of a matrix kept as the means of its rows and columns."""

from __future__ import annotations

from typing import Any

import torch

from cstorch.optim.optimizer import ParameterOptimizer, ParamsT


class Adafactor(ParameterOptimizer):
    """Adafactor (Shazeer and Stern, 2018).

    Args:
        params: Parameters or param_groups.
        lr: Learning rate.
        eps: Added to the squared gradient; and the least norm of a parameter where `scale_parameter` is set.
        clip_threshold: The root mean square of an update is at most this.
        decay_rate: The mean square decays by 1 - t^decay_rate.
        beta1: Decay of a mean of the updates; None for no such mean.
        weight_decay: The parameter shrinks by this times the learning rate.
        scale_parameter: Multiply the learning rate by the root mean square of the parameter.
        relative_step: Use min(0.01, 1/sqrt(t)) in place of `lr`: not available, a schedule sets the learning rate.
        warmup_init: Not available, for the same reason.

    Raises:
        ValueError: `relative_step` or `warmup_init` is set, or there is no learning rate.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = False,
        warmup_init: bool = False,
    ) -> None:
        if relative_step or warmup_init or lr is None:
            raise ValueError(
                f"Adafactor got lr={lr}, relative_step={relative_step} and warmup_init={warmup_init}, expected a "
                "learning rate and False for both. Set the learning rate by a schedule, for example "
                "cstorch.optim.lr_scheduler.InverseSquareRootDecayLR."
            )
        defaults = {
            "lr": lr,
            "eps": eps,
            "clip_threshold": clip_threshold,
            "decay_rate": decay_rate,
            "beta1": beta1,
            "weight_decay": weight_decay,
            "scale_parameter": scale_parameter,
        }
        super().__init__(params, defaults)

    def initial_state(self, parameter: torch.Tensor, group: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Step count, means of squares, and with `beta1` the mean update, all zero."""
        state = {"step": torch.zeros((), dtype=torch.float32, device=parameter.device)}
        if parameter.dim() >= 2:
            shape = parameter.shape
            state["exp_avg_sq_row"] = parameter.new_zeros(shape[:-1])
            state["exp_avg_sq_col"] = parameter.new_zeros(shape[:-2] + shape[-1:])
        else:
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        if group["beta1"] is not None:
            state["exp_avg"] = torch.zeros_like(parameter)
        return state

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """Change one parameter."""
        state = self.state_of(parameter, group)
        lr = group["lr"]
        if group["scale_parameter"]:
            lr = lr * torch.clamp(_root_mean_square(parameter), min=group["eps"][1])
        state["step"].add_(1)
        decay = 1 - state["step"] ** group["decay_rate"]
        square = gradient * gradient + group["eps"][0]
        if parameter.dim() >= 2:
            row, column = state["exp_avg_sq_row"], state["exp_avg_sq_col"]
            row.copy_(decay * row + (1 - decay) * square.mean(-1))
            column.copy_(decay * column + (1 - decay) * square.mean(-2))
            rows = (row / row.mean(-1, keepdim=True)).rsqrt().unsqueeze(-1)
            update = gradient * rows * column.rsqrt().unsqueeze(-2)
        else:
            mean = state["exp_avg_sq"]
            mean.copy_(decay * mean + (1 - decay) * square)
            update = gradient * mean.rsqrt()
        update = lr * update / torch.clamp(_root_mean_square(update) / group["clip_threshold"], min=1.0)
        if group["beta1"] is not None:
            state["exp_avg"].mul_(group["beta1"]).add_((1 - group["beta1"]) * update)
            update = state["exp_avg"]
        parameter.sub_(lr * group["weight_decay"] * parameter + update)


def _root_mean_square(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.square().mean().sqrt()
