"""Lion: steps of equal size, in the direction of the sign of a mean of gradients."""

from __future__ import annotations

import math
from typing import Any

import torch

from cstorch.optim.optimizer import ParameterOptimizer, ParamsT, check_range


class Lion(ParameterOptimizer):
    """Lion (Chen et al., 2023).

    Args:
        params: Parameters or param_groups.
        lr: Learning rate.
        betas: Weight of the mean in the direction, and decay of the mean.
        weight_decay: The parameter shrinks by this times the learning rate.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        check_range(
            type(self).__name__,
            lr=(lr, 0, math.inf),
            weight_decay=(weight_decay, 0, math.inf),
            **{f"betas[{i}]": (beta, 0, 1) for i, beta in enumerate(betas)},
        )
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def initial_state(self, parameter: torch.Tensor, group: dict[str, Any]) -> dict[str, torch.Tensor]:
        """The mean gradient, zero."""
        return {"exp_avg": torch.zeros_like(parameter)}

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """Change one parameter."""
        mean = self.state_of(parameter, group)["exp_avg"]
        beta1, beta2 = group["betas"]
        direction = torch.sign(beta1 * mean + (1 - beta1) * gradient)
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * direction)
        mean.mul_(beta2).add_((1 - beta2) * gradient)
