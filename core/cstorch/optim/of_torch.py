"""The optimizers that are torch's own, with the reference's defaults."""

from __future__ import annotations

from typing import Any

import torch

from cstorch.optim.optimizer import Optimizer, ParamsT


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
