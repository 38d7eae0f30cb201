"""Optimizer code that reads tensors as numbers, said in tensor arithmetic.

Within an optimizer's step `.item()` gives the 0-d tensor itself, in double precision as Python's float; `max` and
`min` of such values in the optimizer's modules become `torch.maximum` and `torch.minimum`; multi-tensor functions with
traced scalars run tensor by tensor. Where Python insists on the value, the optimizer is refused by name.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cstorch.device import CsxTensor
from cstorch.errors import OptimizerError
from cstorch.tracing.recorder import Recorder
from cstorch.tracing.scalars import HostScalar
from cstorch.where import user_line

_READS = frozenset({"__bool__", "__float__", "__int__", "__index__", "tolist", "numpy"})
_FOREACH = "_foreach_"
_IN_PLACE_EXTREMES = {"maximum_": "clamp_min_", "minimum_": "clamp_max_"}


class OptimizerFunctions(TorchFunctionMode):
    """Active during one optimizer's step in a trace.

    Args:
        recorder: The trace.
        optimizer: The optimizer.
        lenient: Whether conditions on values just do not hold: enough to see what state is made before them.
    """

    def __init__(self, recorder: Recorder, optimizer: torch.optim.Optimizer, lenient: bool = False) -> None:
        super().__init__()
        self._recorder, self._name, self._lenient = recorder, type(optimizer).__name__, lenient

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if (name == "item" or name in _READS) and self._recorder.follows(args[0]):
            if name == "__bool__" and self._lenient:
                return False
            if name != "item":
                raise OptimizerError(
                    f"{self._name}.step() needs the value of a tensor in Python ({name.strip('_')}) at {user_line()}. "
                    "A traced step is recorded once and its values exist only when the program runs, so an optimizer "
                    "that decides on values cannot be part of it: use torch.where there, another optimizer, or the "
                    "CPU backend."
                )
            value: torch.Tensor = args[0]
            return value.to(torch.float64) if value.dtype.is_floating_point else value.clone()
        if name.startswith(_FOREACH) and self._has_scalars((args, kwargs)):
            return _each(name.removeprefix(_FOREACH), args, kwargs)
        return func(*args, **kwargs)

    def _has_scalars(self, value: Any) -> bool:
        if isinstance(value, (tuple, list)):
            return any(map(self._has_scalars, value))
        if isinstance(value, dict):
            return any(map(self._has_scalars, value.values()))
        if isinstance(value, torch.Tensor):
            return value.dim() == 0 and self._recorder.follows(value)
        return isinstance(value, HostScalar)


def _each(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
    count = next(len(a) for a in args if isinstance(a, (tuple, list)))
    name = _IN_PLACE_EXTREMES.get(name, name)
    made = []
    for i in range(count):
        row = [a[i] if isinstance(a, (tuple, list)) else a for a in args]
        named = {k: v[i] if isinstance(v, (tuple, list)) else v for k, v in kwargs.items()}
        if name.rstrip("_") in ("addcmul", "addcdiv") and len(row) > 3:
            named["value"] = row.pop()
        function = getattr(torch.Tensor if isinstance(row[0], torch.Tensor) else torch, name)
        made.append(function(*row, **named))
    return None if name.endswith("_") else made


@contextlib.contextmanager
def tensor_extremes(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Within, `max` and `min` in the modules of the optimizer's step functions take traced tensors."""
    replacements = {
        "max": _extreme(builtins.max, torch.maximum, "min"),
        "min": _extreme(builtins.min, torch.minimum, "max"),
    }
    changed: list[tuple[dict[str, Any], str]] = []
    steps = [inspect.unwrap(vars(cls)["step"]) for cls in type(optimizer).__mro__ if "step" in vars(cls)]
    for scope in [step.__globals__ for step in steps if inspect.isfunction(step)]:
        for name, function in replacements.items():
            if name not in scope:
                scope[name] = function
                changed.append((scope, name))
    try:
        yield
    finally:
        for scope, name in changed:
            del scope[name]


def _extreme(plain: Callable[..., Any], combine: Callable[..., torch.Tensor], bound: str) -> Callable[..., Any]:
    def pair(a: Any, b: Any) -> Any:
        if not isinstance(a, torch.Tensor):
            a, b = b, a
        if not isinstance(a, torch.Tensor):
            return plain(a, b)
        return combine(a, b) if isinstance(b, torch.Tensor) else a.clamp(**{bound: b})

    def function(*args: Any, **kwargs: Any) -> Any:
        values = list(args[0]) if len(args) == 1 else args
        if kwargs or not any(isinstance(value, CsxTensor) for value in values):
            return plain(values, **kwargs)
        return functools.reduce(pair, values)

    return function
