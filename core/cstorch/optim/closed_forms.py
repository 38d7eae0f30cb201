"""The schedules that are a formula of the step: `initial_val` is their nominal first value."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from cstorch.optim.schedule import Scheduler, Values


class _Named(Scheduler):
    """A schedule with a nominal first value, `initial_val`."""

    def __init__(
        self,
        optimizer: Any,
        initial_val: float,
        total_iters: float | None = None,
        param_group_tags: Any = None,
        param_group_key: str | None = None,
    ) -> None:
        self.initial_val = initial_val
        super().__init__(optimizer, total_iters, -1, param_group_tags, param_group_key=param_group_key)

    @property
    def initial(self) -> float:
        return float(self.initial_val)


Key = str | None


class ConstantScheduler(_Named):
    """Always `val`."""

    def __init__(
        self, optimizer: Any, val: float, total_iters: int | None = None, param_group_tags: Any = None, *,
        param_group_key: Key = None,
    ) -> None:  # fmt: skip
        super().__init__(optimizer, val, total_iters, param_group_tags, param_group_key)

    def _value(self, step: int) -> Values:
        return self.initial_val


class PolynomialScheduler(_Named):
    """end + (initial - end) (1 - t / total)^power, then `end_val`; with `cycle` the total doubles, trebles, ... ."""

    def __init__(
        self, optimizer: Any, initial_val: float, end_val: float, total_iters: int, power: float = 1.0,
        cycle: bool = False, param_group_tags: Any = None, *, param_group_key: Key = None,
    ) -> None:  # fmt: skip
        self.end_val, self.power, self.cycle = end_val, power, cycle
        super().__init__(optimizer, initial_val, total_iters, param_group_tags, param_group_key)

    def _value(self, step: int) -> Values:
        total = float(self.total_iters or 0)
        if total <= 0:
            return self.end_val
        if self.cycle:
            total *= max(1, math.ceil(step / total))
        left = 1 - min(step / total, 1.0)
        value: float = self.end_val + (self.initial_val - self.end_val) * left**self.power
        return value


class LinearScheduler(PolynomialScheduler):
    """From `initial_val` to `end_val` in `total_iters` steps."""

    def __init__(
        self, optimizer: Any, initial_val: float, end_val: float, total_iters: int, cycle: bool = False,
        param_group_tags: Any = None, *, param_group_key: Key = None,
    ) -> None:  # fmt: skip
        super().__init__(
            optimizer, initial_val, end_val, total_iters, 1.0, cycle, param_group_tags, param_group_key=param_group_key
        )


class ExponentialScheduler(_Named):
    """initial decay_rate^(t / total); `staircase` rounds the exponent down."""

    def __init__(
        self, optimizer: Any, initial_val: float, total_iters: int, decay_rate: float, staircase: bool = False,
        param_group_tags: Any = None, *, param_group_key: Key = None,
    ) -> None:  # fmt: skip
        self.decay_rate, self.staircase = decay_rate, staircase
        super().__init__(optimizer, initial_val, total_iters, param_group_tags, param_group_key)

    def _value(self, step: int) -> Values:
        power = step / float(self.total_iters or 1)
        return self.initial_val * self.decay_rate ** (math.floor(power) if self.staircase else power)


class InverseExponentialTimeDecayScheduler(_Named):
    """initial / (1 + decay_rate t^step_exponent / total); `staircase` rounds the quotient down."""

    def __init__(
        self, optimizer: Any, initial_val: float, step_exponent: float, total_iters: int, decay_rate: float,
        staircase: bool = False, param_group_tags: Any = None, *, param_group_key: Key = None,
    ) -> None:  # fmt: skip
        self.step_exponent, self.decay_rate, self.staircase = step_exponent, decay_rate, staircase
        super().__init__(optimizer, initial_val, total_iters, param_group_tags, param_group_key)

    def _value(self, step: int) -> Values:
        part: float = step**self.step_exponent / float(self.total_iters or 1)
        return self.initial_val / (1 + self.decay_rate * (math.floor(part) if self.staircase else part))


class InverseSquareRootDecayScheduler(_Named):
    """initial scale / sqrt(max(t, warmup_steps))."""

    def __init__(
        self, optimizer: Any, initial_val: float = 1.0, scale: float = 1.0, warmup_steps: float = 1.0,
        param_group_tags: Any = None, *, param_group_key: Key = None,
    ) -> None:  # fmt: skip
        self.scale, self.warmup_steps = scale, warmup_steps
        super().__init__(optimizer, initial_val, None, param_group_tags, param_group_key)

    def _value(self, step: int) -> Values:
        return self.initial_val * self.scale / math.sqrt(max(step, self.warmup_steps))


class CosineDecayScheduler(_Named):
    """Half a cosine from `initial_val` to `end_val` in `total_iters` steps."""

    def __init__(
        self, optimizer: Any, initial_val: float, end_val: float, total_iters: int, param_group_tags: Any = None, *,
        param_group_key: Key = None,
    ) -> None:  # fmt: skip
        self.end_val = end_val
        super().__init__(optimizer, initial_val, total_iters, param_group_tags, param_group_key)

    def _value(self, step: int) -> Values:
        part = min(step / self.total_iters, 1.0) if self.total_iters else 1.0
        return self.end_val + (self.initial_val - self.end_val) * (1 + math.cos(math.pi * part)) / 2


class PiecewiseConstantScheduler(_Named):
    """`vals[i]` from milestone i - 1 on."""

    def __init__(
        self, optimizer: Any, vals: Sequence[float], milestones: Sequence[int], param_group_tags: Any = None, *,
        param_group_key: Key = None,
    ) -> None:  # fmt: skip
        if len(vals) != len(milestones) + 1 or list(milestones) != sorted(milestones):
            raise ValueError(
                f"{type(self).__name__} got {len(vals)} values and the milestones {list(milestones)}, expected one "
                "value more than milestones, which increase. Give the value before the first milestone first."
            )
        self.vals, self.milestones = list(vals), list(milestones)
        super().__init__(optimizer, vals[0], None, param_group_tags, param_group_key)

    def _value(self, step: int) -> Values:
        return self.vals[bisect_right(self.milestones, step)]


class MultiStepScheduler(_Named):
    """`initial_val` times `gamma` for each milestone that is reached."""

    def __init__(
        self, optimizer: Any, initial_val: float, gamma: float, milestones: Sequence[int],
        param_group_tags: Any = None, *, param_group_key: Key = None,
    ) -> None:  # fmt: skip
        self.gamma, self.milestones = gamma, sorted(milestones)
        super().__init__(optimizer, initial_val, None, param_group_tags, param_group_key)

    def _value(self, step: int) -> Values:
        return self.initial_val * self.gamma ** bisect_right(self.milestones, step)


class StepScheduler(_Named):
    """`initial_val` times `gamma` every `step_size` steps."""

    def __init__(
        self, optimizer: Any, initial_val: float, step_size: int, gamma: float, param_group_tags: Any = None, *,
        param_group_key: Key = None,
    ) -> None:  # fmt: skip
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, initial_val, None, param_group_tags, param_group_key)

    def _value(self, step: int) -> Values:
        return self.initial_val * self.gamma ** (step // self.step_size)


class CosineAnnealingScheduler(_Named):
    """A cosine between `initial_val` and `val_min` with half a period of `T_max`."""

    def __init__(
        self, optimizer: Any, initial_val: float, T_max: int, val_min: float = 0.0,  # noqa: N803
        param_group_tags: Any = None, *, param_group_key: Key = None,
    ) -> None:  # fmt: skip
        self.T_max, self.val_min = T_max, val_min
        super().__init__(optimizer, initial_val, None, param_group_tags, param_group_key)

    def _value(self, step: int) -> Values:
        return self.val_min + (self.initial_val - self.val_min) * (1 + math.cos(math.pi * step / self.T_max)) / 2


class CosineAnnealingWarmRestartsScheduler(_Named):
    """Half a cosine again and again: the first takes `T_0` steps, each later one `T_mult` times as many."""

    def __init__(
        self, optimizer: Any, initial_val: float, T_0: int, T_mult: int = 1, val_min: float = 0.0,  # noqa: N803
        param_group_tags: Any = None, *, param_group_key: Key = None,
    ) -> None:  # fmt: skip
        if T_0 < 1 or T_mult < 1:
            raise ValueError(f"{type(self).__name__} got T_0={T_0} and T_mult={T_mult}. Use numbers of at least 1.")
        self.T_0, self.T_mult, self.val_min = T_0, T_mult, val_min
        super().__init__(optimizer, initial_val, None, param_group_tags, param_group_key)

    def _value(self, step: int) -> Values:
        period = self.T_0
        if self.T_mult == 1:
            step %= period
        while step >= period:
            step, period = step - period, period * self.T_mult
        return self.val_min + (self.initial_val - self.val_min) * (1 + math.cos(math.pi * step / period)) / 2


class LambdaScheduler(_Named):
    """`initial_val` times `set_value_lambda()`, which subclasses override: a factor or a function of the step."""

    def __init__(
        self, optimizer: Any, initial_val: float, param_group_tags: Any = None, *, param_group_key: Key = None
    ) -> None:
        super().__init__(optimizer, initial_val, None, param_group_tags, param_group_key)

    def set_value_lambda(self) -> Any:
        """The factor at step `self.last_epoch`, or a function from the step to the factor."""
        return 1.0

    def _value(self, step: int) -> Values:
        factor: Any = self.set_value_lambda()
        product: float = self.initial_val * (factor(step) if callable(factor) else factor)
        return product


class MultiplicativeScheduler(_Named):
    """initial coefficient^t."""

    def __init__(
        self, optimizer: Any, initial_val: float, coefficient: float, param_group_tags: Any = None, *,
        param_group_key: Key = None,
    ) -> None:  # fmt: skip
        self.coefficient = coefficient
        super().__init__(optimizer, initial_val, None, param_group_tags, param_group_key)

    def _value(self, step: int) -> Values:
        return self.initial_val * self.coefficient**step
