"""Optimizers and schedulers by name, as configuration files give them."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import torch

from cstorch.optim import lr_scheduler, scheduler, weight_decay_scheduler
from cstorch.optim.optimizer import ParamsT


def _named(module: Any, base: type, name: str, suffixes: tuple[str, ...] = ("",)) -> Any:
    known = {
        key.lower(): value for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, base)
    }
    for suffix in suffixes:
        if (name + suffix).lower() in known:
            return known[(name + suffix).lower()]
    raise ValueError(
        f"there is no {base.__name__} named {name!r}. "
        f"Use one of {', '.join(sorted(v.__name__ for v in known.values()))}."
    )


def configure_optimizer_params(optimizer_type: str, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The class of an optimizer and its arguments.

    Args:
        optimizer_type: Its name, in any case.
        kwargs: Its arguments; `learning_rate` becomes `lr`, where it is a number, and `lr` 0.1 where there is none.

    Raises:
        ValueError: there is no such optimizer.
    """
    cls = _named(importlib.import_module("cstorch.optim"), torch.optim.Optimizer, optimizer_type)
    kwargs = dict(kwargs)
    rate = kwargs.pop("learning_rate", None)
    kwargs.setdefault("lr", rate if isinstance(rate, (int, float)) else 0.1)
    return cls, kwargs


def configure_optimizer(optimizer_type: str, params: ParamsT, **kwargs: Any) -> torch.optim.Optimizer:
    """An optimizer by name.

    Args:
        optimizer_type: Its name, in any case: "AdamW".
        params: Parameters or param_groups.
        kwargs: Its other arguments.

    Raises:
        ValueError: there is no such optimizer.
    """
    cls, kwargs = configure_optimizer_params(optimizer_type, kwargs)
    made: torch.optim.Optimizer = cls(params, **kwargs)
    return made


def configure_scheduler_params(learning_rate: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The class of a schedule and its arguments.

    Args:
        learning_rate: Its arguments and its name under "scheduler": "CosineDecay", "LinearLR"; or one entry, the name
            with a dict of arguments: {"LinearLR": {...}}, also of the weight decay and of other numbers.

    Returns:
        The class and its arguments but the optimizer.

    Raises:
        ValueError: there is no such schedule, or one that went on counting over all of a sequence is asked for.
    """
    kwargs = dict(learning_rate)
    nested = len(kwargs) == 1 and isinstance(next(iter(kwargs.values())), dict)
    if nested:
        ((name, given),) = kwargs.items()
        kwargs = dict(given)
        module: Any = next((m for m in (weight_decay_scheduler, scheduler) if name in vars(m)), lr_scheduler)
    else:
        name, module = kwargs.pop("scheduler", "Constant"), lr_scheduler
    kwargs.pop("main_scheduler", None)
    if kwargs.pop("disable_lr_steps_reset", False):
        raise ValueError(
            f"disable_lr_steps_reset is set for {name}, but each schedule of a sequence begins with its step 0 here. "
            "Leave it out and say the schedule from that step on, for example with another initial_learning_rate."
        )
    if "steps" in kwargs:
        kwargs["total_iters"] = kwargs.pop("steps")
    return _named(module, scheduler.Scheduler, name, ("", "LR")), kwargs


def configure_lr_scheduler(
    optimizer: torch.optim.Optimizer, learning_rate: Any, adjust_learning_rate: Any = None
) -> Any:
    """A schedule of a configuration.

    Args:
        optimizer: The optimizer.
        learning_rate: A number; a dict (see `configure_scheduler_params`), in which "schedulers" and a "scheduler" of
            another schedule are configurations, too; or a list of dicts, one schedule after another. Where the steps
            at which the next one begins are not given as "milestones", each but the last has `total_iters`.
        adjust_learning_rate: Whatever is true: `group["adjust_learning_rate"]` multiplies the learning rate of a group
            (see `configure_param_groups`).

    Returns:
        The schedule.

    Raises:
        ValueError: there is no such schedule, or one that is not the last has no `total_iters`.
    """
    made = _configured(optimizer, learning_rate)
    return lr_scheduler.ScalePerParamLR(optimizer, made) if adjust_learning_rate else made


configure_scheduler = configure_lr_scheduler


def _configured(optimizer: torch.optim.Optimizer, config: Any) -> Any:
    if isinstance(config, (int, float)):
        return lr_scheduler.ConstantLR(optimizer, config)
    if not isinstance(config, dict):
        return _sequence(lr_scheduler.SequentialLR, optimizer, config)
    cls, kwargs = configure_scheduler_params(config)
    if issubclass(cls, scheduler.SequentialScheduler):
        return _sequence(cls, optimizer, **kwargs)
    if issubclass(cls, scheduler.ChainedScheduler):
        return cls([_configured(optimizer, entry) for entry in kwargs.pop("schedulers")], **kwargs)
    if issubclass(cls, scheduler.ScalePerParamScheduler):
        return cls(optimizer, _configured(optimizer, kwargs.pop("scheduler")), **kwargs)
    return cls(optimizer, **kwargs)


def _sequence(cls: Any, optimizer: Any, schedulers: list[Any], milestones: list[int] | None = None, **rest: Any) -> Any:
    made = [_configured(optimizer, entry) for entry in schedulers]
    if len(made) == 1 and not rest:
        return made[0]
    if milestones is None:
        endless = next((entry for entry in made[:-1] if entry.total_iters is None), None)
        if endless is not None:
            raise ValueError(
                f"{type(endless).__name__} is followed by another schedule but has no total_iters. Say how long it "
                "lasts."
            )
        milestones = [*itertools.accumulate(entry.total_iters for entry in made[:-1])]
    return cls(optimizer, made, milestones, **rest)
