"""Schedulers made of schedulers: one after another, multiplied, or scaled for each param_group."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from cstorch.optim.schedule import Scheduler, Values


class SequentialScheduler(Scheduler):
    """One scheduler after another: from milestone i - 1 on the i-th, which begins there with its step 0.

    Args:
        optimizer: The optimizer of all of them.
        schedulers: Of the same number of the param_groups.
        milestones: One fewer than schedulers, increasing.
        last_epoch: The step before the first; -1 to begin at step 0.
        param_group_tags: Only groups with one of these tags.

    Raises:
        ValueError: the number of milestones does not fit, or the schedulers are of several optimizers or numbers.
    """

    def __init__(
        self, optimizer: Any, schedulers: Sequence[Scheduler], milestones: Sequence[int], last_epoch: int = -1,
        param_group_tags: Any = None,
    ) -> None:  # fmt: skip
        if len(schedulers) != len(milestones) + 1 or list(milestones) != sorted(milestones):
            raise ValueError(
                f"{type(self).__name__} got {len(schedulers)} schedulers and the milestones {list(milestones)}, "
                "expected one scheduler more than milestones, which increase."
            )
        key = _common_key(optimizer, schedulers)
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        super().__init__(optimizer, None, last_epoch, param_group_tags, param_group_key=key)

    def _value(self, step: int) -> Values:
        index = bisect_right(self.milestones, step)
        return self.schedulers[index].values_at(step - (self.milestones[index - 1] if index else 0))


class ChainedScheduler(Scheduler):
    """The first scheduler's value times value / initial value of each other.

    Args:
        schedulers: Of the same optimizer and number.
        param_group_tags: Only groups with one of these tags.

    Raises:
        ValueError: there is none, or they are of several optimizers or numbers.
    """

    def __init__(self, schedulers: Sequence[Scheduler], param_group_tags: Any = None) -> None:
        if not schedulers:
            raise ValueError(f"{type(self).__name__} got no schedulers, expected at least one.")
        optimizer = schedulers[0].optimizer
        key = _common_key(optimizer, schedulers)
        self.schedulers = list(schedulers)
        super().__init__(optimizer, None, -1, param_group_tags, param_group_key=key)

    def _value(self, step: int) -> Values:
        values = self.schedulers[0].values_at(step)
        for scheduler in self.schedulers[1:]:
            factors = [v / scheduler.initial for v in scheduler.values_at(step)]
            values = [v * f for v, f in zip(values, factors, strict=True)]
        return values


class ScalePerParamScheduler(Scheduler):
    """A scheduler's value times `group["adjust_learning_rate"]` of each param_group, 1 where there is none.

    Args:
        optimizer: The optimizer of the scheduler.
        scheduler: What is scaled.
        param_group_tags: Only groups with one of these tags.
    """

    def __init__(self, optimizer: Any, scheduler: Scheduler, param_group_tags: Any = None) -> None:
        self.scheduler = scheduler
        key = _common_key(optimizer, [scheduler])
        super().__init__(optimizer, None, -1, param_group_tags, param_group_key=key)

    def _value(self, step: int) -> Values:
        values = self.scheduler.values_at(step)
        return [v * group.get("adjust_learning_rate", 1.0) for v, group in zip(values, self._groups(), strict=True)]


def _common_key(optimizer: Any, schedulers: Sequence[Scheduler]) -> str:
    keys = {scheduler.param_group_key for scheduler in schedulers}
    if len(keys) != 1 or any(scheduler.optimizer is not optimizer for scheduler in schedulers):
        raise ValueError(
            f"the schedulers are of {sorted(keys)} and of one or more optimizers, expected one number and the "
            "optimizer that is given. Combine schedulers of the same optimizer and number."
        )
    return keys.pop()
