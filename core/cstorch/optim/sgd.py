"""SGD whose momentum starts at zero, so that its first step is like every other."""

from __future__ import annotations

import math
from typing import Any

import torch

from cstorch.optim.optimizer import ParameterOptimizer, ParamsT, check_range


class SGD(ParameterOptimizer):
    """Stochastic gradient descent with momentum; as torch's but that the first gradient is dampened too.

    Args:
        params: Parameters or param_groups.
        lr: Learning rate.
        momentum: Decay of the sum of gradients; 0 for none.
        dampening: What a gradient lacks of its full weight in that sum.
        weight_decay: Factor of the parameter that is added to the gradient.
        nesterov: Look one step ahead.
        maximize: Go up.

    Raises:
        ValueError: a number is out of range; `nesterov` without momentum or with dampening.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
    ) -> None:
        check_range(
            type(self).__name__,
            lr=(lr, 0, math.inf),
            momentum=(momentum, 0, math.inf),
            weight_decay=(weight_decay, 0, math.inf),
        )
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError(
                f"SGD got nesterov=True with momentum={momentum} and dampening={dampening}, expected momentum above 0 "
                "and dampening 0. Set them so, or leave nesterov out."
            )
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def initial_state(self, parameter: torch.Tensor, group: dict[str, Any]) -> dict[str, torch.Tensor]:
        """The sum of gradients, zero, where there is momentum."""
        return {"momentum_buffer": torch.zeros_like(parameter)} if group["momentum"] != 0 else {}

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """Change one parameter."""
        if group["maximize"]:
            gradient = -gradient
        gradient = gradient + group["weight_decay"] * parameter
        if group["momentum"] != 0:
            total = self.state_of(parameter, group)["momentum_buffer"]
            total.mul_(group["momentum"]).add_((1 - group["dampening"]) * gradient)
            gradient = gradient + group["momentum"] * total if group["nesterov"] else total
        parameter.sub_(group["lr"] * gradient)
