"""Schedules of the learning rate (`cerebras.pytorch.optim.lr_scheduler`), each a function of the step t, from 0.

All take the optimizer first, and `param_group_tags`: the tags of the parameter groups that they set, None for all.
Names and numbers that a schedule cannot use are a ValueError when it is made.
"""

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
    """Always `learning_rate`; after `total_iters` steps too."""

    def __init__(
        self, optimizer: Any, learning_rate: float, total_iters: int | None = None, param_group_tags: Any = None
    ) -> None:
        super().__init__(optimizer, val=learning_rate, total_iters=total_iters, param_group_tags=param_group_tags)


class PolynomialLR(_all.PolynomialScheduler, LRScheduler):
    """end + (initial - end) (1 - t / total_iters)^power, then `end_learning_rate`.

    Args:
        power: 1 is a straight line.
        cycle: Instead of ending, go on with twice, three times, ... `total_iters`.
    """

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
    """In a straight line from `initial_learning_rate` to `end_learning_rate` in `total_iters` steps, which then stays.

    Args:
        cycle: As for PolynomialLR.
    """

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
    """initial decay_rate^(t / total_iters).

    Args:
        staircase: Round the exponent down, so that the rate falls every `total_iters` steps.
    """

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
    """initial / (1 + decay_rate t^step_exponent / total_iters).

    Args:
        staircase: Round the quotient t^step_exponent / total_iters down.
    """

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
    """initial scale / sqrt(max(t, warmup_steps))."""

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
    """Half a cosine from `initial_learning_rate` to `end_learning_rate` in `total_iters` steps, which then stays."""

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
    """`learning_rates[i]` from step `milestones[i - 1]` on.

    Args:
        learning_rates: One more than milestones.
        milestones: Steps, rising.
    """

    def __init__(
        self, optimizer: Any, learning_rates: Sequence[float], milestones: Sequence[int], param_group_tags: Any = None
    ) -> None:
        super().__init__(optimizer, learning_rates, milestones, param_group_tags=param_group_tags)


class MultiStepLR(_all.MultiStepScheduler, LRScheduler):
    """`initial_learning_rate`, times `gamma` at each of the steps `milestones`."""

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
    """`initial_learning_rate`, times `gamma` every `step_size` steps."""

    def __init__(
        self, optimizer: Any, initial_learning_rate: float, step_size: int, gamma: float, param_group_tags: Any = None
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, step_size, gamma, param_group_tags=param_group_tags)


class CosineAnnealingLR(_all.CosineAnnealingScheduler, LRScheduler):
    """A cosine between `initial_learning_rate` and `eta_min`, down in `T_max` steps and up again in as many."""

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
    """Half a cosine down to `eta_min`, again and again: first in `T_0` steps, then each in `T_mult` times as many."""

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
    """The initial rate times `set_value_lambda()`, which subclasses define: a factor, or a function of the step."""

    def __init__(self, optimizer: Any, initial_learning_rate: float, param_group_tags: Any = None) -> None:
        super().__init__(optimizer, initial_learning_rate, param_group_tags=param_group_tags)


class MultiplicativeLR(_all.MultiplicativeScheduler, LRScheduler):
    """initial coefficient^t."""

    def __init__(
        self, optimizer: Any, initial_learning_rate: float, coefficient: float, param_group_tags: Any = None
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, coefficient, param_group_tags=param_group_tags)


class CyclicLR(_all.CyclicScheduler, LRScheduler):
    """Up from `base_lr` to `max_lr` in `step_size_up` steps and down again, over and over.

    Args:
        step_size_down: Default `step_size_up`.
        mode: "triangular"; "triangular2" halves the height with each cycle; "exp_range" multiplies it by gamma^x.
        gamma: For "exp_range".
        scale_mode: x counts the "cycle"s or the "iterations".
    """

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
    """Up from `initial_learning_rate` to `max_lr`, then down to initial / final_div_factor, in `total_steps` steps.

    Args:
        pct_start: The share of the steps that go up.
        three_phase: Come down to `initial_learning_rate` first, as fast as up.
        anneal_strategy: "cos" or "linear".
    """

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
    """One schedule after another; arguments of `scheduler.SequentialScheduler`."""


class ChainedLR(_all.ChainedScheduler, LRScheduler):
    """The first schedule times rate / initial rate of each other; arguments of `scheduler.ChainedScheduler`."""


class ScalePerParamLR(_all.ScalePerParamScheduler, LRScheduler):
    """Another schedule times `group["adjust_learning_rate"]`; arguments of `scheduler.ScalePerParamScheduler`."""


ChainedScheduler = ChainedLR
