"""Schedules of any number of a param_group: the value is a function of the step.

A scheduler's `step` counts and writes the value into the optimizer's param_groups. It is work of the host, done at its
place in every run where a traced step calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Values = float | torch.Tensor | Sequence[float | torch.Tensor]


class Scheduler(torch.optim.lr_scheduler.LRScheduler):
    """Base class (`cerebras.pytorch.optim.scheduler.Scheduler`).

    A subclass names the number in `param_group_key` and implements `_get_closed_form` (or `_get_closed_form_lr`): the
    value at step `self.last_epoch`, a float or a tensor, or a list of one for each group.

    Args:
        optimizer: Its param_groups are written, at once with the value of the first step.
        total_iters: Steps of the schedule, where it has an end.
        last_epoch: The step before the first; -1 to begin at step 0.
        param_group_tags: Only groups with one of these in `group["tags"]`; None for all.
        param_group_key: The number, for a class that names none.

    Raises:
        ValueError: there is no `param_group_key`.
    """

    param_group_key: str = ""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        total_iters: float | None = None,
        last_epoch: int = -1,
        param_group_tags: Any = None,
        *,
        param_group_key: str | None = None,
    ) -> None:
        if param_group_key is not None:
            self.param_group_key = param_group_key
        if not self.param_group_key:
            raise ValueError(
                f"{type(self).__name__} does not know which number of the param_groups it schedules. Pass "
                'param_group_key, for example param_group_key="momentum".'
            )
        self.optimizer = optimizer
        self.total_iters = total_iters
        tags = [param_group_tags] if isinstance(param_group_tags, str) else param_group_tags
        self.param_group_tags = None if tags is None else set(tags)
        self.last_epoch = last_epoch + 1
        self._write()

    # -- the value -------------------------------------------------------------------------------------

    def _value(self, step: int) -> Values:
        raise NotImplementedError(f"{type(self).__name__} has no _get_closed_form, the value at self.last_epoch")

    def _get_closed_form(self) -> Values:
        return self._value(int(self.last_epoch))

    def _get_closed_form_lr(self) -> Any:
        return self._get_closed_form()

    def values_at(self, step: int) -> list[float]:
        """The value of each scheduled group at a step.

        Args:
            step: Counted from 0.
        """
        before = self.last_epoch
        # Closed forms of client programs are written in tensor arithmetic.
        foreign = not type(self).__module__.startswith("cstorch.optim")
        self.last_epoch = torch.tensor(float(step)) if foreign else step  # type: ignore[assignment]
        try:
            value = self._get_closed_form_lr()
        finally:
            self.last_epoch = before
        groups = self._groups()
        listed = list(value) if isinstance(value, (list, tuple)) else [value] * len(groups)
        return [float(v) for v in listed]

    def _groups(self) -> list[dict[str, Any]]:
        tags = self.param_group_tags
        groups = self.optimizer.param_groups
        if tags is None:
            return groups

        def tagged(group: dict[str, Any]) -> bool:
            own = group.get("tags") or ()
            return not tags.isdisjoint([own] if isinstance(own, str) else own)

        return [group for group in groups if tagged(group)]

    def _write(self) -> None:
        self._last_value = self.values_at(self.last_epoch)
        for group, value in zip(self._groups(), self._last_value, strict=True):
            number = group.get(self.param_group_key)
            if isinstance(number, torch.Tensor):
                number.fill_(value)
            else:
                group[self.param_group_key] = value

    def step(self, epoch: int | None = None) -> None:
        """Go to the next step and write its value.

        Args:
            epoch: Go to this step instead.
        """
        self.last_epoch = self.last_epoch + 1 if epoch is None else int(epoch)
        self._write()

    def get_last_value(self) -> list[float]:
        """The value of each scheduled group now."""
        return self._last_value

    def get_last_lr(self) -> list[Any]:
        """The value of each scheduled group now."""
        return self._last_value

    def get_lr(self) -> list[Any]:
        """The value of each scheduled group now."""
        return self._last_value

    # -- checkpoints -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The step and the values written last."""
        return {"last_epoch": self.last_epoch, "_last_value": list(self._last_value)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to the step of a state dict and write its value.

        Args:
            state_dict: What `state_dict` returned.

        Raises:
            KeyError: it holds no "last_epoch".
        """
        self.last_epoch = int(state_dict["last_epoch"])
        self._write()

    @property
    def initial(self) -> float:
        """The nominal first value, to which `ChainedScheduler` refers the value."""
        return self.values_at(0)[0]
