"""Optimizers and schedulers by name, as configuration files give them."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from cstorch.optim import lr_scheduler, scheduler
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
    """The class of a learning-rate schedule and its arguments.

    Args:
        learning_rate: Its arguments and its name under "scheduler": "CosineDecay", "LinearLR".

    Raises:
        ValueError: there is no such schedule.
    """
    kwargs = dict(learning_rate)
    name = kwargs.pop("scheduler", "Constant")
    kwargs.pop("main_scheduler", None)
    if "steps" in kwargs:
        kwargs["total_iters"] = kwargs.pop("steps")
    return _named(lr_scheduler, scheduler.Scheduler, name, ("", "LR")), kwargs


def configure_lr_scheduler(optimizer: torch.optim.Optimizer, learning_rate: Any) -> Any:
    """A learning-rate schedule of a configuration.

    Args:
        optimizer: The optimizer.
        learning_rate: A number; a dict (see `configure_scheduler_params`); or a list of dicts, one schedule after
            another, each but the last with `total_iters`.

    Raises:
        ValueError: there is no such schedule, or one that is not the last has no `total_iters`.
    """
    if isinstance(learning_rate, (int, float)):
        return lr_scheduler.ConstantLR(optimizer, learning_rate)
    if isinstance(learning_rate, dict):
        cls, kwargs = configure_scheduler_params(learning_rate)
        return cls(optimizer, **kwargs)
    made = [configure_lr_scheduler(optimizer, entry) for entry in learning_rate]
    milestones, total = [], 0
    for entry in made[:-1]:
        if entry.total_iters is None:
            raise ValueError(
                f"{type(entry).__name__} is followed by another schedule but has no total_iters. Say how long it lasts."
            )
        total += entry.total_iters
        milestones.append(total)
    return made[0] if len(made) == 1 else lr_scheduler.SequentialLR(optimizer, made, milestones)


configure_scheduler = configure_lr_scheduler
