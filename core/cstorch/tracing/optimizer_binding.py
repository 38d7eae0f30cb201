"""Holds a program to the optimizers that it was traced with: their param_groups and their state.

A program works on the very tensors that were an optimizer's state when it was traced. `load_state_dict` gives the
optimizer others; their contents are taken over into the program's. State that the first step creates is installed
after that step has run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, compress
from operator import is_
from typing import Any

import torch

from cstorch.device import CsxTensor
from cstorch.tracing.observed_state import ObservedState, observe_state
from cstorch.tracing.scalars import is_number

_END = (object(),)


@dataclass(frozen=True)
class Birth:
    """A state entry that the program creates; `value` is an Output, a ScalarSlot or a value of the host."""

    parameter: torch.Tensor
    key: str
    value: Any


class OptimizerBinding:
    """One optimizer of one program.

    Args:
        optimizer: The optimizer, as it is before the program runs.
        births: What the program adds to its state.
        steps: Whether the program uses the optimizer's state, rather than its param_groups alone.
        late: State tensors that were not there before the step, by the parameter's id and key.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        births: list[Birth],
        steps: bool,
        late: frozenset[tuple[int, str]] = frozenset(),
    ) -> None:
        self.optimizer = optimizer
        self.births = births
        self.late = late
        self._state = observe_state(optimizer) if steps else ObservedState()
        self._steps, self._group_list = steps, optimizer.param_groups
        self._groups = list(optimizer.param_groups)
        self._parameters = [list(group["params"]) for group in self._groups]
        self._counts = [len(known) for known in self._parameters]
        self._absent = list({id(b.parameter): b.parameter for b in births}.values())
        # Numbers change from step to step: which entries are tensors, and which tensors, is what must stay.
        self._tables, values = self._state.tables(), self._state.entries()
        self._numbers = any(map(is_number, values))
        self._is_tensor = [isinstance(value, torch.Tensor) for value in values]
        self._known = [*(compress(values, self._is_tensor) if self._numbers else values), *_END]
        self._accesses_seen = -1

    def holds(self) -> bool:
        """Whether the optimizer is the one that the program knows."""
        optimizer = self.optimizer
        if optimizer.param_groups is not self._group_list or (self._steps and optimizer.state is not self._state):
            return False
        if [len(group["params"]) for group in self._group_list] != self._counts:
            return False
        if self._accesses_seen == self._state.accesses:
            return True
        if not self._has_same_state():
            return False
        if self._state.is_private():
            self._accesses_seen = self._state.accesses
        return True

    def _has_same_state(self) -> bool:
        if self._state.tables() != self._tables:
            return False
        values = self._state.entries()
        if self._numbers:
            if len(values) != len(self._is_tensor):
                return False
            values = [*compress(values, self._is_tensor)]
        return all(map(is_, chain(values, _END), self._known)) and not any(map(self._state.table, self._absent))

    def mismatch(self) -> str:
        """Why `holds` is false, in words."""
        name, groups = type(self.optimizer).__name__, self.optimizer.param_groups
        if len(groups) != len(self._groups):
            return f"{name} has another number of param_groups now"
        for index, (group, known) in enumerate(zip(groups, self._parameters, strict=True)):
            if len(group["params"]) != len(known):
                return f"param_groups[{index}] of {name} has other parameters now"
        if self._absent:
            return f"{name} has made its state in its first step"
        return f"{name} was given other state or param_groups"

    def adopt(self) -> None:
        """Take over what `load_state_dict` has given the optimizer, where it has the same layout."""
        optimizer = self.optimizer
        groups, state = optimizer.param_groups, optimizer.state if self._steps else {}
        if groups is self._group_list or (self._steps and state is self._state):
            return
        if self._absent or not self._fits(groups, state):
            return
        for parameter, table in self._state.items():
            for key, value in state[parameter].items():
                if isinstance(value, torch.Tensor):
                    with torch.no_grad():
                        table[key].copy_(value)
                else:
                    table[key] = value
        for known, group in zip(self._groups, groups, strict=True):
            known.clear()
            known.update(group)
        optimizer.param_groups = self._group_list
        if self._steps:
            optimizer.state = self._state

    def _fits(self, groups: list[dict[str, Any]], state: Any) -> bool:
        same_groups = len(groups) == len(self._groups) and all(
            len(group["params"]) == len(known) and all(map(is_, group["params"], known))
            for group, known in zip(groups, self._parameters, strict=True)
        )
        return (
            same_groups
            and state.keys() == self._state.keys()
            and all(_layout(table) == _layout(state[p]) for p, table in self._state.items())
        )

    def install(self, fill: Callable[[Any], Any]) -> None:
        """Give the optimizer the state that the program has made; `fill` turns an Output or ScalarSlot into a value."""
        for birth in self.births:
            value = fill(birth.value)
            if isinstance(value, torch.Tensor):
                value = CsxTensor(value) if value is not birth.value else value.clone()
            self._state[birth.parameter][birth.key] = value


def _layout(table: dict[str, Any]) -> dict[str, Any]:
    return {
        key: (value.shape, value.dtype) if isinstance(value, torch.Tensor) else type(value)
        for key, value in table.items()
    }
