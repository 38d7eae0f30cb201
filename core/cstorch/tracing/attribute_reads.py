"""Which attributes of modules a step reads: each is a guard, asked again only when some module was given a new one.

While a step is traced, every look-up of an attribute passes through here; outside, `nn.Module.__setattr__` counts
the assignments to names that some program has read. So `model.dropout.p = 0.3` between two steps is noticed, at no
cost for the steps in between.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from cstorch.device.tensor import observer
from cstorch.tracing.scalars import HostScalar
from cstorch.where import is_ours

MISSING: Any = types.SimpleNamespace()
"""Stands for an attribute that is not there."""

_NEVER = object()

INTERNAL = frozenset(vars(nn.Module())) | {"device", "training"}
"""What every module has; the training mode is followed by itself."""

_COMPARED = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_SAME = (nn.Module, torch.Tensor, types.FunctionType, types.BuiltinFunctionType, type)
_MODULE_FILE = str(nn.Module.__call__.__code__.co_filename)
_LIGHTNING = tuple(f"{os.sep}{name}{os.sep}" for name in ("lightning", "pytorch_lightning", "torchmetrics"))


def is_compared(value: Any) -> bool:
    """Whether a later value is right when it equals this one."""
    return isinstance(value, _COMPARED) or (isinstance(value, tuple) and all(map(is_compared, value)))


def is_same_object(value: Any) -> bool:
    """Whether a later value is right when it is this very object."""
    return isinstance(value, _SAME)


def look_up(module: nn.Module, name: str) -> Any:
    """What an assignment to the attribute would replace, or MISSING."""
    own = module.__dict__
    if name in own:
        return own[name]
    for kind in ("_parameters", "_buffers", "_modules"):
        if name in own.get(kind, ()):
            return own[kind][name]
    return MISSING


class AttributeReads:
    """The attributes that are looked up within, each with the value that it had first.

    Args:
        meet: Called with every module before it is read from.
    """

    def __init__(self, meet: Callable[[nn.Module], None]) -> None:
        self._meet = meet
        self._first: dict[tuple[int, str], tuple[nn.Module, str, Any]] = {}

    def __enter__(self) -> AttributeReads:
        first, meet = self._first, self._meet
        counts: dict[str, bool] = {_MODULE_FILE: False}
        plain = object.__getattribute__

        def look(module: nn.Module, name: str) -> Any:
            if name not in INTERNAL and not name.startswith("__") and (id(module), name) not in first:
                file = sys._getframe(1).f_code.co_filename
                if file not in counts:
                    counts[file] = not (is_ours(file) or any(part in file for part in _LIGHTNING))
                if counts[file]:
                    first[id(module), name] = module, name, look_up(module, name)
                    meet(module)
            return plain(module, name)

        nn.Module.__getattribute__ = look  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *error: object) -> None:
        del nn.Module.__getattribute__

    def have_read(self, module: nn.Module, name: str, value: Any) -> bool:
        """Whether the attribute was looked up while it was `value`."""
        return self._first.get((id(module), name), (None, None, _NEVER))[2] is value

    def guards(self) -> list[tuple[nn.Module, str, Any]]:
        """Those that later calls must find as they were; what the step itself assigned is not among them."""
        found = []
        for module, name, value in self._first.values():
            if isinstance(value, HostScalar) or not (is_compared(value) or is_same_object(value)):
                continue
            now = look_up(module, name)
            if now is value or (is_compared(value) and now == value):
                found.append((module, name, value))
        observer.watched.update(name for _, name, _ in found)
        return found


_setattr, _delattr = nn.Module.__setattr__, nn.Module.__delattr__


def _set_noticed(self: nn.Module, name: str, value: Any) -> None:
    if name in observer.watched:
        observer.attribute_changes += 1
    _setattr(self, name, value)


def _delete_noticed(self: nn.Module, name: str) -> None:
    observer.attribute_changes += 1
    _delattr(self, name)


nn.Module.__setattr__ = _set_noticed  # type: ignore[method-assign]
nn.Module.__delattr__ = _delete_noticed  # type: ignore[method-assign]
