"""The base of metrics: modules that gather tensors over steps, on the device, to be read after the loop."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from cstorch.backend import current_torch_device

_metrics: weakref.WeakValueDictionary[str, Metric] = weakref.WeakValueDictionary()


class Metric(nn.Module, ABC):
    """A value gathered over steps. Call it in the traced step, and read `float(metric)` after the loop.

    A subclass makes its state with `register_state`, and defines `update`, `compute` and `reset`. None of these may
    read a value of a tensor: they are traced. As part of a model its state is saved and moved with it only if it is
    persistent; by itself it is on the device of the backend that was there when the metric was made.

    Args:
        name: Known by it in `get_all_metrics`; default the class's name. A number is appended if it is taken.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        wanted = made = name or type(self).__name__
        count = 1
        while made in _metrics:
            made, count = f"{wanted}_{count}", count + 1
        self.name = made
        _metrics[made] = self

    def register_state(self, name: str, tensor: torch.Tensor, persistent: bool = False) -> None:
        """Make `tensor` a state of the metric, as the attribute `name`.

        Args:
            name: Of the attribute.
            tensor: The value to begin with.
            persistent: Whether it is part of `state_dict`.
        """
        self.register_buffer(name, tensor.to(current_torch_device()), persistent)

    @abstractmethod
    def reset(self) -> None:
        """Forget what was gathered."""

    @abstractmethod
    def update(self, *args: Any, **kwargs: Any) -> None:
        """Gather a batch. In the traced step the state is changed in place."""

    @abstractmethod
    def compute(self) -> torch.Tensor:
        """The value so far, a 0-d tensor; not a number when nothing was gathered."""

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Gather a batch; the value so far, to give to a step closure."""
        self.update(*args, **kwargs)
        return self.compute()

    def __float__(self) -> float:
        return float(self.compute())


def get_all_metrics() -> list[tuple[str, Metric]]:
    """Pairs of name and metric, of all that there are, in no order; a dict of them finds one by name."""
    return list(_metrics.items())


def compute_all_metrics() -> dict[str, float]:
    """The value of every metric, by name."""
    return {name: float(metric) for name, metric in get_all_metrics()}
