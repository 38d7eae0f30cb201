"""torchmetrics in a traced step: their states live on the host, and what a step calls on them happens after each run.

Most metrics look at values (`bincount`, `unique`, argument checks), so they cannot be part of a program. In a step
`metric(preds, y)`, `update`, `compute` and `reset` become host calls on what the program computes; outside of steps
metrics are what they always are, except that they take tensors of the device too.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from cstorch.tracing.host_values import host_call
from torch import nn

_METHODS = ("forward", "update", "compute", "reset")


class HostMetrics:
    """The metrics of a LightningModule while it is on csx.

    Args:
        module: The LightningModule.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._updates: list[tuple[Any, Callable[..., Any]]] = []

    def settle(self) -> None:
        """Bring them back to the host, and let `update` take tensors of the device."""
        self.release()
        for metric in self._find():
            metric.to("cpu")
            if "update" in vars(metric):  # a Metric keeps its own there, a MetricCollection hands on to others
                self._updates.append((metric, metric.update))
                vars(metric)["update"] = _taking_all_devices(metric.update)

    def release(self) -> None:
        """Give them their own `update` back."""
        for metric, update in self._updates:
            vars(metric)["update"] = update
        self._updates.clear()

    @contextlib.contextmanager
    def called_later(self) -> Iterator[None]:
        """Within, calls of the metrics are host calls of the step that is being traced."""
        before = []
        for metric in self._find():
            own = {name: vars(metric)[name] for name in _METHODS if name in vars(metric)}
            before.append((metric, own))
            later = {name: _later(metric, name) for name in _METHODS}
            vars(metric).update(later)
        try:
            yield
        finally:
            for metric, own in before:
                for name in _METHODS:
                    vars(metric).pop(name)
                vars(metric).update(own)

    def _find(self) -> list[Any]:
        torchmetrics = sys.modules.get("torchmetrics")
        if torchmetrics is None:
            return []
        kinds = (torchmetrics.Metric, torchmetrics.MetricCollection)
        found = {id(m): m for m in self._module.modules() if isinstance(m, kinds)}
        for value in vars(self._module).values():
            inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
            for held in inner:
                if isinstance(held, kinds):
                    found.update((id(m), m) for m in held.modules() if isinstance(m, kinds))
        return list(found.values())


def _taking_all_devices(update: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(update)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        args = tuple(_on_host(a) for a in args)
        return update(*args, **{key: _on_host(value) for key, value in kwargs.items()})

    return wrapped


def _on_host(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(map(_on_host, value))
    if type(value) is dict:
        return {key: _on_host(item) for key, item in value.items()}
    return value.cpu() if isinstance(value, torch.Tensor) and value.device.type == "csx" else value


def _later(metric: Any, name: str) -> Callable[..., Any]:
    own = getattr(metric, name)
    many = isinstance(metric, nn.ModuleDict)  # a MetricCollection

    @functools.wraps(own)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = own(*args, **kwargs)
        if many:
            metric.values()  # each metric of a group has its state now, as it may be logged by itself
        return result if name in ("forward", "compute") else None

    def sample(*args: Any, **kwargs: Any) -> Any:
        twin = copy.deepcopy(metric)
        for part in twin.modules():
            for method in ("forward", "reset", *(_METHODS if isinstance(part, nn.ModuleDict) else ())):
                vars(part).pop(method, None)
        result = getattr(twin, name)(*args, **kwargs)
        return result if name in ("forward", "compute") else None

    call.sample = sample  # type: ignore[attr-defined]

    def later(*args: Any, **kwargs: Any) -> Any:
        return host_call(call, *args, **kwargs)

    return later
