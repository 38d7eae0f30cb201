"""Lamb: Adam's direction, scaled for each parameter by the ratio of its norm to that of the update."""

from __future__ import annotations

import math
from typing import Any

import torch

from cstorch.optim.optimizer import ParameterOptimizer, ParamsT, check_range

LARGEST_NORM = 10.0
"""The norm of a parameter counts as at most this (the paper's phi)."""


class Lamb(ParameterOptimizer):
    """Lamb (You et al., 2020) without bias correction.

    Args:
        params: Parameters or param_groups.
        lr: Learning rate.
        betas: Decay of the mean gradient and of the mean square.
        eps: Added to the root of the mean square.
        weight_decay: Factor of the parameter that is added to the update.
        adam: Leave the ratio of norms out, which makes it Adam without bias correction.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adam: bool = False,
    ) -> None:
        check_range(
            type(self).__name__,
            lr=(lr, 0, math.inf),
            eps=(eps, 0, math.inf),
            **{f"betas[{i}]": (beta, 0, 1) for i, beta in enumerate(betas)},
        )
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adam": adam}
        super().__init__(params, defaults)

    def initial_state(self, parameter: torch.Tensor, group: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Mean gradient and mean square, zero."""
        return {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """Change one parameter."""
        state = self.state_of(parameter, group)
        beta1, beta2 = group["betas"]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.mul_(beta1).add_((1 - beta1) * gradient)
        square.mul_(beta2).add_((1 - beta2) * gradient * gradient)
        update = mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * parameter
        if not group["adam"]:
            norm, update_norm = parameter.norm().clamp(max=LARGEST_NORM), update.norm()
            usable = (norm > 0) & (update_norm > 0)
            ratio = norm / torch.where(usable, update_norm, torch.ones_like(update_norm))
            update = update * torch.where(usable, ratio, torch.ones_like(ratio))
        parameter.sub_(group["lr"] * update)
