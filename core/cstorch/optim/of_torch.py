"""The optimizers that are torch's own, with the reference's defaults.

`initial_state` names what torch makes at the first step, for `preinitialize`.
"""

from __future__ import annotations

from typing import Any

import torch

from cstorch.optim.optimizer import Optimizer, ParamsT

State = dict[str, torch.Tensor]


def _number(value: float, parameter: torch.Tensor, group: dict[str, Any], on_device: bool = False) -> torch.Tensor:
    """A number of the state, where torch keeps it: on the host, unless its steps are captured or fused."""
    dtype = torch.float64 if torch.get_default_dtype() is torch.float64 else torch.float32
    on_device = on_device or bool(group.get("capturable") or group.get("fused"))
    return torch.full((), float(value), dtype=dtype, device=parameter.device if on_device else "cpu")


class Adadelta(Optimizer, torch.optim.Adadelta):
    """`torch.optim.Adadelta`.

    Args:
        params: Parameters or param_groups.
        lr: Learning rate.
        rho: Decay of the mean squares.
        eps: Added to mean squares before their roots.
        weight_decay: Factor of the parameter that is added to the gradient.
        kwargs: What torch's class takes besides.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        **kwargs: Any,
    ) -> None:
        torch.optim.Adadelta.__init__(self, params, lr, rho, eps, weight_decay, **kwargs)

    def initial_state(self, parameter: torch.Tensor, group: dict[str, Any]) -> State:
        """Step count, mean square gradient and mean square update, all zero."""
        return {
            "step": _number(0, parameter, group),
            "square_avg": torch.zeros_like(parameter),
            "acc_delta": torch.zeros_like(parameter),
        }


class Adagrad(Optimizer, torch.optim.Adagrad):
    """`torch.optim.Adagrad` with eps 1e-6.

    Args:
        params: Parameters or param_groups.
        lr: Learning rate.
        lr_decay: Decay of the learning rate.
        weight_decay: Factor of the parameter that is added to the gradient.
        initial_accumulator_value: Of the sum of squares.
        eps: Added to the root of the sum.
        kwargs: What torch's class takes besides.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        torch.optim.Adagrad.__init__(self, params, lr, lr_decay, weight_decay, initial_accumulator_value, eps, **kwargs)

    def initial_state(self, parameter: torch.Tensor, group: dict[str, Any]) -> State:
        """Step count, zero, and the sum of squares, `initial_accumulator_value`."""
        start = group["initial_accumulator_value"]
        if parameter.is_complex():
            start = complex(start, start)
        return {"step": _number(0, parameter, group), "sum": torch.full_like(parameter, start)}


class Adamax(Optimizer, torch.optim.Adamax):
    """`torch.optim.Adamax` with eps 1e-6.

    Args:
        params: Parameters or param_groups.
        lr: Learning rate.
        betas: Decay of the mean gradient and of the largest one.
        eps: Added to the gradients' sizes.
        weight_decay: Factor of the parameter that is added to the gradient.
        kwargs: What torch's class takes besides.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        **kwargs: Any,
    ) -> None:
        torch.optim.Adamax.__init__(self, params, lr, betas, eps, weight_decay, **kwargs)

    def initial_state(self, parameter: torch.Tensor, group: dict[str, Any]) -> State:
        """Step count, mean gradient and largest gradient, all zero."""
        return {
            "step": _number(0, parameter, group),
            "exp_avg": torch.zeros_like(parameter),
            "exp_inf": torch.zeros_like(parameter),
        }


class ASGD(Optimizer, torch.optim.ASGD):
    """`torch.optim.ASGD`.

    Args:
        params: Parameters or param_groups.
        lr: Learning rate.
        lambd: Decay term.
        alpha: Power of the learning rate's decay.
        t0: The step at which averaging begins.
        weight_decay: Factor of the parameter that is added to the gradient.
        kwargs: What torch's class takes besides.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        **kwargs: Any,
    ) -> None:
        torch.optim.ASGD.__init__(self, params, lr, lambd, alpha, t0, weight_decay, **kwargs)

    def initial_state(self, parameter: torch.Tensor, group: dict[str, Any]) -> State:
        """Step count, zero; learning rate and weight of the average; the average, zero."""
        return {
            "step": _number(0, parameter, group, on_device=True),
            "eta": _number(group["lr"], parameter, group, on_device=True),
            "mu": _number(1, parameter, group, on_device=True),
            "ax": torch.zeros_like(parameter),
        }


class NAdam(Optimizer, torch.optim.NAdam):
    """`torch.optim.NAdam`.

    Args:
        params: Parameters or param_groups.
        lr: Learning rate.
        betas: Decay of the mean gradient and of the mean square.
        eps: Added to the root of the mean square.
        weight_decay: Factor of the parameter that is added to the gradient.
        momentum_decay: Decay of the momentum.
        kwargs: What torch's class takes besides.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        **kwargs: Any,
    ) -> None:
        torch.optim.NAdam.__init__(self, params, lr, betas, eps, weight_decay, momentum_decay, **kwargs)

    def initial_state(self, parameter: torch.Tensor, group: dict[str, Any]) -> State:
        """Step count, mean gradient and mean square, all zero; the product of momenta, one."""
        return {
            "step": _number(0, parameter, group),
            "mu_product": _number(1, parameter, group),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }


class RAdam(Optimizer, torch.optim.RAdam):
    """`torch.optim.RAdam` with eps 1e-6.

    Args:
        params: Parameters or param_groups.
        lr: Learning rate.
        betas: Decay of the mean gradient and of the mean square.
        eps: Added to the root of the mean square.
        weight_decay: Factor of the parameter that is added to the gradient.
        kwargs: What torch's class takes besides.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        **kwargs: Any,
    ) -> None:
        torch.optim.RAdam.__init__(self, params, lr, betas, eps, weight_decay, **kwargs)

    def initial_state(self, parameter: torch.Tensor, group: dict[str, Any]) -> State:
        """Step count, mean gradient and mean square, all zero."""
        return {
            "step": _number(0, parameter, group),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }


class RMSprop(Optimizer, torch.optim.RMSprop):
    """`torch.optim.RMSprop`.

    Args:
        params: Parameters or param_groups.
        lr: Learning rate.
        alpha: Decay of the mean square.
        eps: Added to its root.
        weight_decay: Factor of the parameter that is added to the gradient.
        momentum: Decay of the sum of updates; 0 for none.
        centered: Divide by the variance instead of the mean square.
        kwargs: What torch's class takes besides.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        **kwargs: Any,
    ) -> None:
        torch.optim.RMSprop.__init__(self, params, lr, alpha, eps, weight_decay, momentum, centered, **kwargs)

    def initial_state(self, parameter: torch.Tensor, group: dict[str, Any]) -> State:
        """Step count and mean square, with momentum its buffer, when centered the mean gradient; all zero."""
        names = ["square_avg", *["momentum_buffer"] * (group["momentum"] > 0), *["grad_avg"] * group["centered"]]
        return {"step": _number(0, parameter, group), **{name: torch.zeros_like(parameter) for name in names}}


class Rprop(Optimizer, torch.optim.Rprop):
    """`torch.optim.Rprop`.

    Args:
        params: Parameters or param_groups.
        lr: The first step size.
        etas: Factors by which step sizes shrink and grow.
        step_sizes: The least and the largest.
        kwargs: What torch's class takes besides.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        **kwargs: Any,
    ) -> None:
        torch.optim.Rprop.__init__(self, params, lr, etas, step_sizes, **kwargs)

    def initial_state(self, parameter: torch.Tensor, group: dict[str, Any]) -> State:
        """Step count and last gradient, zero; step sizes, the learning rate."""
        size = complex(group["lr"], group["lr"]) if parameter.is_complex() else float(group["lr"])
        return {
            "step": _number(0, parameter, group),
            "prev": torch.zeros_like(parameter),
            "step_size": torch.full_like(parameter, size),
        }
