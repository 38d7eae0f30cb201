"""Rules about calls: a mode that sees the functions of torch that the step's Python calls, and at which line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from cstorch.constraints.rule import RULES, Finding
from cstorch.device import CSX, CsxTensor
from cstorch.where import is_library, user_line

_Check = Callable[[tuple[Any, ...], dict[str, Any]], bool]


def _is_weight(value: Any) -> bool:
    """Whether `value` is a parameter or a buffer, rather than an argument of the step or computed in it."""
    if not isinstance(value, CsxTensor) or value._leaf is not None:
        return False
    return not value.is_handle if value._node is None else value._node.op == "placeholder"


def _of_weight(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(args) and _is_weight(args[0])


def _of_bool(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    value = args[0] if args else kwargs.get("tensors", kwargs.get("input"))
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(part, CsxTensor) and part.dtype is torch.bool for part in parts)


def _index_of(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return args[1] if isinstance(args[1], tuple) else (args[1],)


def _slices(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(part, slice) and part != slice(None) for part in _index_of(args))


def _picks(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    whole = (None, Ellipsis, slice(None))
    return _of_weight(args, kwargs) and any(isinstance(p, torch.Tensor) or p not in whole for p in _index_of(args))


def _leaves_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device", args[1] if len(args) > 1 else None)
    return isinstance(device, (str, torch.device)) and torch.device(device).type != CSX.type


def _any(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return True


_NAMED: tuple[tuple[str, str, _Check], ...] = (
    ("__bool__ __int__ __float__ __index__ __repr__ __format__ __array__ __contains__", "value-read", _any),
    ("item tolist numpy cpu", "value-read", _any),
    ("to", "value-read", _leaves_device),
    ("__getitem__", "weight-indexing", _picks),
    ("__getitem__", "slicing", _slices),
    ("split split_with_sizes chunk narrow tensor_split unbind", "weight-indexing", _of_weight),
    ("split split_with_sizes chunk narrow tensor_split", "slicing", _any),
    ("index_select gather select take", "weight-indexing", _of_weight),
    ("t transpose permute swapaxes movedim", "weight-transpose", _of_weight),
    ("triu tril", "bool-triangle", _of_bool),
    ("cat concat concatenate hstack vstack", "bool-concat", _of_bool),
    ("bincount", "counting", _any),
)
"""Names of functions and methods of torch, the rule that calls break, and when; the first that is broken counts."""

_BY_NAME: dict[str, list[tuple[str, _Check]]] = {}
for _names, _rule, _check in _NAMED:
    for _name in _names.split():
        _BY_NAME.setdefault(_name, []).append((_rule, _check))

_BY_FUNCTION: dict[Any, str] = {
    F.one_hot: "counting",
    F.scaled_dot_product_attention: "attention",
    F.multi_head_attention_forward: "attention",
    F.cross_entropy: "fused-cross-entropy",
}


class Calls(TorchFunctionMode):
    """Active in a trace after everything else, so it sees each call as the user wrote it.

    Args:
        name: The step's name.
        found: Where findings go.
    """

    def __init__(self, name: str, found: list[Finding]) -> None:
        super().__init__()
        self._name, self._found = name, found

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        by_user = not is_library(sys._getframe(1).f_code.co_filename)
        broken = list(_broken(func, args, kwargs, by_user))  # before the call: it may change what a tensor stands for
        out = func(*args, **kwargs)
        if broken:  # a call that raises speaks for itself
            line, name = user_line(), getattr(func, "__name__", str(func))
            shown = func.__self__.__name__ if name == "__get__" else name
            self._found += [Finding(RULES[rule], line, f"{shown} in the step {self._name!r}") for rule in broken]
        return out


def _broken(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], by_user: bool) -> Iterator[str]:
    """Names of the rules that a call breaks; what optimizers of torch pass as a number is not the user's to change."""
    first = args[0] if args else None
    if isinstance(first, (list, tuple)) and first:
        first = first[0]
    if not isinstance(first, CsxTensor):
        return
    name = getattr(func, "__name__", "")
    if name == "__get__":
        if getattr(func.__self__, "__name__", "") in ("T", "mT", "H", "mH") and _is_weight(first):
            yield "weight-transpose"
        return
    if func in _BY_FUNCTION:
        yield _BY_FUNCTION[func]
        return
    if by_user and any(isinstance(kwargs.get(key), CsxTensor) for key in ("alpha", "value")):
        yield "tensor-as-number"
    for rule, breaks in _BY_NAME.get(name, ()):
        if breaks(args, kwargs):
            yield rule
            return
