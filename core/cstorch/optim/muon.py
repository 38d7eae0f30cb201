"""Muon: momentum whose matrix is made orthogonal by a Newton-Schulz iteration."""

from __future__ import annotations

import math
from typing import Any

import torch

from cstorch.optim.optimizer import ParameterOptimizer, ParamsT, check_range

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic that takes singular values towards 1."""


def orthogonalized(matrix: torch.Tensor, steps: int) -> torch.Tensor:
    """`matrix` with singular values near 1.

    Args:
        matrix: Shape (rows, columns).
        steps: Iterations.
    """
    a, b, c = COEFFICIENTS
    tall = matrix.size(0) > matrix.size(1)
    x: torch.Tensor = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if tall else x


class Muon(ParameterOptimizer):
    """Muon (Jordan et al., 2024), for parameters of two dimensions and more; give biases to another optimizer.

    The update is scaled by sqrt(max(1, rows / columns)); further dimensions are columns.

    Args:
        params: Parameters or param_groups.
        lr: Learning rate.
        weight_decay: The parameter shrinks by this times the learning rate.
        momentum: Decay of the mean gradient.
        nesterov: Look one step ahead.
        ns_steps: Newton-Schulz iterations.

    Raises:
        ValueError: a number is out of range, or a parameter has fewer dimensions than two.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 0.02,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
    ) -> None:
        check_range(
            type(self).__name__,
            lr=(lr, 0, math.inf),
            weight_decay=(weight_decay, 0, math.inf),
            momentum=(momentum, 0, 1),
            ns_steps=(ns_steps, 1, 100),
        )
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_steps": ns_steps,
        }
        super().__init__(params, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.dim() < 2:
                    raise ValueError(
                        f"Muon got a parameter of shape {tuple(parameter.shape)}, expected two dimensions or more. "
                        "Give biases and scales to another optimizer, for example AdamW."
                    )

    def initial_state(self, parameter: torch.Tensor, group: dict[str, Any]) -> dict[str, torch.Tensor]:
        """The mean gradient, zero."""
        return {"momentum_buffer": torch.zeros_like(parameter)}

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """Change one parameter."""
        mean, momentum = self.state_of(parameter, group)["momentum_buffer"], group["momentum"]
        mean.mul_(momentum).add_((1 - momentum) * gradient)
        update = (1 - momentum) * gradient + momentum * mean if group["nesterov"] else mean
        matrix = update.reshape(update.size(0), -1)
        scale = max(1.0, matrix.size(0) / matrix.size(1)) ** 0.5
        matrix = scale * orthogonalized(matrix, group["ns_steps"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * matrix.reshape(parameter.shape))
