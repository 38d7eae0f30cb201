"""Adam and AdamW with eps added before the bias correction, as the paper's efficient form has it."""

from __future__ import annotations

import math
from typing import Any

import torch

from cstorch.optim.optimizer import ParameterOptimizer, ParamsT, check_range


class Adam(ParameterOptimizer):
    """Adam (Kingma and Ba, 2015, end of section 2): step lr sqrt(1 - b2^t) / (1 - b1^t), denominator sqrt(v) + eps.

    Args:
        params: Parameters or param_groups.
        lr: Learning rate.
        betas: Decay of the mean gradient and of the mean square.
        eps: Added to the root of the mean square, before the bias correction (torch adds it after).
        weight_decay: Factor of the parameter that is added to the gradient.
        amsgrad: Use the largest mean square so far.

    Raises:
        ValueError: a number is out of range.
    """

    _decoupled = False

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        self._build(params, lr, betas, eps, weight_decay, True, amsgrad)

    def _build(
        self,
        params: ParamsT,
        lr: float | torch.Tensor,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        correct_bias: bool,
        amsgrad: bool,
    ) -> None:
        check_range(
            type(self).__name__,
            lr=(lr, 0, math.inf),
            eps=(eps, 0, math.inf),
            weight_decay=(weight_decay, 0, math.inf),
            **{f"betas[{i}]": (beta, 0, 1) for i, beta in enumerate(betas)},
        )
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "correct_bias": correct_bias,
            "amsgrad": amsgrad,
        }
        super().__init__(params, defaults)

    def initial_state(self, parameter: torch.Tensor, group: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Step count, mean gradient and mean square, all zero."""
        state = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
        if group["amsgrad"]:
            state["max_exp_avg_sq"] = torch.zeros_like(parameter)
        return state

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """Change one parameter."""
        state = self.state_of(parameter, group)
        beta1, beta2 = group["betas"]
        lr = group["lr"]
        if not self._decoupled:
            gradient = gradient + group["weight_decay"] * parameter
        state["step"].add_(1)
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.mul_(beta1).add_((1 - beta1) * gradient)
        square.mul_(beta2).add_((1 - beta2) * gradient * gradient)
        if group["amsgrad"]:
            square = torch.maximum(state["max_exp_avg_sq"], square)
            state["max_exp_avg_sq"].copy_(square)
        size = lr
        if group["correct_bias"]:
            count = state["step"].double()  # 1 - 0.999**t has four digits left in float32
            size = lr * torch.sqrt(1 - beta2**count) / (1 - beta1**count)
        if self._decoupled:
            parameter.mul_(1 - lr * group["weight_decay"])
        parameter.sub_(size * mean / (square.sqrt() + group["eps"]))


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019).

    Args:
        params: Parameters or param_groups.
        lr: Learning rate.
        betas: Decay of the mean gradient and of the mean square.
        eps: Added to the root of the mean square, before the bias correction (torch adds it after).
        weight_decay: The parameter shrinks by this times the learning rate.
        correct_bias: Whether the bias of the means is corrected; BERT's optimizer does not.
        amsgrad: Use the largest mean square so far.

    Raises:
        ValueError: a number is out of range.
    """

    _decoupled = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
        amsgrad: bool = False,
    ) -> None:
        self._build(params, lr, betas, eps, weight_decay, correct_bias, amsgrad)
