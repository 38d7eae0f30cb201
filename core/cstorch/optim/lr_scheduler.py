"""Schedules of the learning rate (`cerebras.pytorch.optim.lr_scheduler`); closed_forms has the formulas."""

# ruff: noqa: N803
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cstorch.optim import scheduler as _all
from cstorch.optim.schedule import Scheduler


class LRScheduler(Scheduler):
    """Base of the schedules of `group["lr"]`."""

    param_group_key = "lr"


class ConstantLR(_all.ConstantScheduler, LRScheduler):
    """`ConstantScheduler` of the learning rate."""

    def __init__(
        self, optimizer: Any, learning_rate: float, total_iters: int | None = None, param_group_tags: Any = None
    ) -> None:
        super().__init__(optimizer, val=learning_rate, total_iters=total_iters, param_group_tags=param_group_tags)


class PolynomialLR(_all.PolynomialScheduler, LRScheduler):
    """`PolynomialScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float,
        end_learning_rate: float,
        total_iters: int,
        power: float = 1.0,
        cycle: bool = False,
        param_group_tags: Any = None,
    ) -> None:
        super().__init__(
            optimizer,
            initial_learning_rate,
            end_learning_rate,
            total_iters,
            power,
            cycle,
            param_group_tags=param_group_tags,
        )


class LinearLR(_all.LinearScheduler, LRScheduler):
    """`LinearScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float,
        end_learning_rate: float,
        total_iters: int,
        cycle: bool = False,
        param_group_tags: Any = None,
    ) -> None:
        super().__init__(
            optimizer, initial_learning_rate, end_learning_rate, total_iters, cycle, param_group_tags=param_group_tags
        )


class ExponentialLR(_all.ExponentialScheduler, LRScheduler):
    """`ExponentialScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float,
        total_iters: int,
        decay_rate: float,
        staircase: bool = False,
        param_group_tags: Any = None,
    ) -> None:
        super().__init__(
            optimizer, initial_learning_rate, total_iters, decay_rate, staircase, param_group_tags=param_group_tags
        )


class InverseExponentialTimeDecayLR(_all.InverseExponentialTimeDecayScheduler, LRScheduler):
    """`InverseExponentialTimeDecayScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float,
        step_exponent: float,
        total_iters: int,
        decay_rate: float,
        staircase: bool = False,
        param_group_tags: Any = None,
    ) -> None:
        super().__init__(
            optimizer,
            initial_learning_rate,
            step_exponent,
            total_iters,
            decay_rate,
            staircase,
            param_group_tags=param_group_tags,
        )


class InverseSquareRootDecayLR(_all.InverseSquareRootDecayScheduler, LRScheduler):
    """`InverseSquareRootDecayScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float = 1.0,
        scale: float = 1.0,
        warmup_steps: float = 1.0,
        param_group_tags: Any = None,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, scale, warmup_steps, param_group_tags=param_group_tags)


class CosineDecayLR(_all.CosineDecayScheduler, LRScheduler):
    """`CosineDecayScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float,
        end_learning_rate: float,
        total_iters: int,
        param_group_tags: Any = None,
    ) -> None:
        super().__init__(
            optimizer, initial_learning_rate, end_learning_rate, total_iters, param_group_tags=param_group_tags
        )


class PiecewiseConstantLR(_all.PiecewiseConstantScheduler, LRScheduler):
    """`PiecewiseConstantScheduler` of the learning rate."""

    def __init__(
        self, optimizer: Any, learning_rates: Sequence[float], milestones: Sequence[int], param_group_tags: Any = None
    ) -> None:
        super().__init__(optimizer, learning_rates, milestones, param_group_tags=param_group_tags)


class MultiStepLR(_all.MultiStepScheduler, LRScheduler):
    """`MultiStepScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float,
        gamma: float,
        milestones: Sequence[int],
        param_group_tags: Any = None,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, gamma, milestones, param_group_tags=param_group_tags)


class StepLR(_all.StepScheduler, LRScheduler):
    """`StepScheduler` of the learning rate."""

    def __init__(
        self, optimizer: Any, initial_learning_rate: float, step_size: int, gamma: float, param_group_tags: Any = None
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, step_size, gamma, param_group_tags=param_group_tags)


class CosineAnnealingLR(_all.CosineAnnealingScheduler, LRScheduler):
    """`CosineAnnealingScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float,
        T_max: int,
        eta_min: float = 0.0,
        param_group_tags: Any = None,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, T_max, eta_min, param_group_tags=param_group_tags)


class CosineAnnealingWarmRestarts(_all.CosineAnnealingWarmRestartsScheduler, LRScheduler):
    """`CosineAnnealingWarmRestartsScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        param_group_tags: Any = None,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, T_0, T_mult, eta_min, param_group_tags=param_group_tags)


class LambdaLR(_all.LambdaScheduler, LRScheduler):
    """`LambdaScheduler` of the learning rate."""

    def __init__(self, optimizer: Any, initial_learning_rate: float, param_group_tags: Any = None) -> None:
        super().__init__(optimizer, initial_learning_rate, param_group_tags=param_group_tags)


class MultiplicativeLR(_all.MultiplicativeScheduler, LRScheduler):
    """`MultiplicativeScheduler` of the learning rate."""

    def __init__(
        self, optimizer: Any, initial_learning_rate: float, coefficient: float, param_group_tags: Any = None
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, coefficient, param_group_tags=param_group_tags)


class CyclicLR(_all.CyclicScheduler, LRScheduler):
    """`CyclicScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: Any,
        base_lr: float,
        max_lr: float,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_mode: str = "cycle",
        param_group_tags: Any = None,
    ) -> None:
        super().__init__(
            optimizer,
            base_lr,
            max_lr,
            step_size_up,
            step_size_down,
            mode,
            gamma,
            scale_mode,
            param_group_tags=param_group_tags,
        )


class OneCycleLR(_all.OneCycleScheduler, LRScheduler):
    """`OneCycleScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: Any,
        initial_learning_rate: float,
        max_lr: float,
        total_steps: int = 1000,
        pct_start: float = 0.3,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        anneal_strategy: str = "cos",
        param_group_tags: Any = None,
    ) -> None:
        super().__init__(
            optimizer,
            initial_learning_rate,
            max_lr,
            total_steps,
            pct_start,
            final_div_factor,
            three_phase,
            anneal_strategy,
            param_group_tags=param_group_tags,
        )


class SequentialLR(_all.SequentialScheduler, LRScheduler):
    """`SequentialScheduler` of the learning rate."""


class ChainedLR(_all.ChainedScheduler, LRScheduler):
    """`ChainedScheduler` of the learning rate."""


class ScalePerParamLR(_all.ScalePerParamScheduler, LRScheduler):
    """`ScalePerParamScheduler` of the learning rate."""


ChainedScheduler = ChainedLR
