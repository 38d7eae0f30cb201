"""The layout of the param_groups that a step uses is a guard: groups, parameters and settings that are no numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cstorch.tracing.scalars import ScalarScope

_IMMATERIAL = ("foreach", "fused", "capturable")  # ways to compute the same


class LayoutGuards:
    """Guards for every optimizer that steps while a step is traced.

    Args:
        scope: Where they are recorded.
    """

    def __init__(self, scope: ScalarScope) -> None:
        self._scope = scope
        self._seen: set[int] = set()

    def __enter__(self) -> LayoutGuards:
        self._hook = register_optimizer_step_pre_hook(self._before_step)
        return self

    def __exit__(self, *error: object) -> None:
        self._hook.remove()

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) in self._seen:
            return
        self._seen.add(id(optimizer))
        scope, name = self._scope, type(optimizer).__name__
        it = scope.object(optimizer)
        groups = optimizer.param_groups
        scope.guard(f"len({it}.param_groups)", len(groups), f"{name} has another number of param_groups now")
        loaded = f"{name} was given other state or param_groups, for example by load_state_dict"
        scope.guard(f"{it}.state is {scope.object(optimizer.state)}", True, loaded)
        for index, group in enumerate(groups):
            here = f"{it}.param_groups[{index}]"
            scope.guard(f"{here} is {scope.object(group)}", True, loaded)
            changed = f"param_groups[{index}] of {name} has other parameters now"
            scope.guard(f"len({here}['params'])", len(group["params"]), changed)
            for key, value in group.items():
                if key not in _IMMATERIAL and isinstance(value, (bool, str, type(None))):
                    words = f"param_groups[{index}][{key!r}] of {name} was {value!r} and is something else now"
                    scope.guard(f"{here}[{key!r}]", value, words)
