"""What a traced step's calls into torch are turned into before they are recorded.

A TorchFunctionMode sees every call of a torch function with its original arguments. Host scalars become
tensors where the function can take one and guarded numbers where it cannot; `alpha=` and `value=` tensors,
which torch would read, become tensor arithmetic; `torch.tensor` of traced values becomes a stack of them.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from cstorch._torch_private.backward import is_on
from cstorch.device import CSX, CsxTensor
from cstorch.tracing.assertions import asserted, check_later, may_check
from cstorch.tracing.attention import flash_attention
from cstorch.tracing.context import context
from cstorch.tracing.gradients import GradientLedger
from cstorch.tracing.host_values import host_call
from cstorch.tracing.scalars import HostScalar, code_of, make_scalar, plain_number
from cstorch.tracing.static_forms import static_form
from cstorch.where import is_ours

_TAKES_SCALAR_TENSORS = frozenset(
    {
        "add", "add_", "sub", "sub_", "subtract", "rsub", "mul", "mul_", "multiply", "div", "div_", "divide",
        "true_divide", "pow", "pow_", "fill_", "eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum",
        "where", "clamp", "clamp_", "clip", "fmod", "remainder", "floor_divide", "copysign", "xlogy",
        "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "__mul__", "__rmul__",
        "__imul__", "__truediv__", "__rtruediv__", "__itruediv__", "__pow__", "__rpow__", "__ipow__",
        "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__mod__", "__floordiv__", "lerp", "lerp_",
    }
)  # fmt: skip

_BOUNDS = frozenset({"clamp", "clamp_", "clip", "maximum", "minimum"})

_SCALED_TERM: dict[str, Callable[..., torch.Tensor]] = {
    "add": lambda a: a,
    "sub": lambda a: -a,
    "addcmul": torch.mul,
    "addcdiv": torch.div,
}


def _is_scalar_tensor(value: Any) -> bool:
    return isinstance(value, HostScalar) or (isinstance(value, torch.Tensor) and value.dim() == 0)


class StepFunctions(TorchFunctionMode):
    """Active while a step is traced."""

    def __init__(
        self,
        as_tensor: Callable[[HostScalar], torch.Tensor],
        as_entry: Callable[[HostScalar, torch.dtype], torch.Tensor],
        gradients: GradientLedger,
    ) -> None:
        super().__init__()
        self.as_tensor, self.as_entry = as_tensor, as_entry
        self.gradients = gradients

    def resumed(self, _outputs: Any) -> contextlib.AbstractContextManager[Any]:
        """A context in which this mode is on: `Tensor.backward` turns it off for all that runs in backward."""
        return contextlib.nullcontext() if is_on(self) else self

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__set__":
            if func.__self__ is torch.Tensor.grad:
                self.gradients.assigned(args[0], args[1])
            elif func.__self__ is torch.Tensor.data and isinstance(args[0], CsxTensor):
                args[0].data = args[1]
                return None
            return func(*args, **kwargs)
        if name == "__bool__" and may_check():
            frame = sys._getframe(1)
            while is_ours(frame.f_code.co_filename) and frame.f_back is not None:
                frame = frame.f_back  # of a mode between this one and the user
            outcome = asserted(frame)
            if outcome is not None:
                return check_later(args[0], frame, outcome)
        if context.copies_to_host and _copies_to_host(name, args, kwargs):
            return host_call(_same, args[0])
        if name == "__get__" and func.__self__ is torch.Tensor.grad:
            self.gradients.looked(args[0])
            return func(*args, **kwargs)
        if name in ("tensor", "as_tensor") and func in (torch.tensor, torch.as_tensor):
            return self._tensor(func, args, kwargs)
        attends = func is F.scaled_dot_product_attention
        static = flash_attention(*args, **kwargs) if attends else static_form(func, args, kwargs)
        if static is not NotImplemented:
            return static
        for key in ("alpha", "value"):
            if key in kwargs and _is_scalar_tensor(kwargs[key]) and name.rstrip("_") in _SCALED_TERM:
                return self._scaled(name, key, args, kwargs)
        if name == "full_like" and isinstance(args[1] if len(args) > 1 else None, (HostScalar, CsxTensor)):
            made = torch.empty_like(args[0], **kwargs)
            return made.fill_(self.as_tensor(args[1]) if isinstance(args[1], HostScalar) else args[1])
        if not _has_scalar(args) and not _has_scalar(kwargs.values()):
            return func(*args, **kwargs)
        if name == "__getitem__" and type(args[0]) is torch.Tensor:
            number = _entry_of_table(args[0], args[1])
            if number is not None:
                return self.as_entry(number, args[0].dtype)
        takes = name in _TAKES_SCALAR_TENSORS and any(isinstance(a, CsxTensor) for a in args)
        if name in ("lerp", "lerp_") and takes:
            weight = self.as_tensor(args[2]).to(args[0].dtype)
            return func(args[0], args[1], weight)
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        beside = lambda scalar: scalar._scope.tensor_beside(scalar, tensors, bound=name in _BOUNDS)  # noqa: E731
        convert = beside if takes else _number
        return func(*[_convert(a, convert) for a in args], **{k: _convert(v, convert) for k, v in kwargs.items()})

    def _scaled(self, name: str, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`base.addcmul_(a, b, value=v)` and its kin, with `v` a tensor, in plain tensor arithmetic."""
        kwargs = dict(kwargs)
        scale = kwargs.pop(key)
        if isinstance(scale, HostScalar):
            scale = self.as_tensor(scale)
        base, *rest = args
        dtype = functools.reduce(torch.promote_types, (t.dtype for t in (base, *rest) if isinstance(t, torch.Tensor)))
        wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype  # as the kernels reckon
        parts = [t.to(wide) if isinstance(t, torch.Tensor) else t for t in rest]
        term = (_SCALED_TERM[name.rstrip("_")](*parts) * scale).to(wide)
        if wide is dtype:
            return getattr(base, "add_" if name.endswith("_") else "add")(term, **kwargs)
        made = base.to(wide) + term
        return base.copy_(made) if name.endswith("_") else made.to(dtype)

    def _tensor(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        data = args[0] if args else kwargs["data"]
        if isinstance(data, torch.Tensor) or not _holds_traced(data):
            return func(*args, **kwargs)
        made = self._stack(data)
        dtype, device = kwargs.get("dtype"), kwargs.get("device")
        if dtype is None and made.dtype == torch.float64:
            made = made.to(torch.get_default_dtype())
        if device is not None and torch.device(device).type != CSX.type:
            return made.to(device)  # reads: refused with the line
        return made if dtype is None else made.to(dtype)

    def _stack(self, data: Any) -> torch.Tensor:
        if isinstance(data, HostScalar):
            return self.as_tensor(data)
        if isinstance(data, torch.Tensor):
            return data.detach()
        if isinstance(data, (list, tuple)):
            parts = [self._stack(item) for item in data]
            dtype = parts[0].dtype
            for part in parts[1:]:
                dtype = torch.promote_types(dtype, part.dtype)
            return torch.stack([part.to(dtype) for part in parts])
        return torch.tensor(data, device=CSX)


def _number(value: HostScalar) -> Any:
    return value.item()


def _copies_to_host(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if not isinstance(args[0] if args else None, CsxTensor):
        return False
    if name == "to":
        device = kwargs.get("device", args[1] if len(args) > 1 else None)
        return isinstance(device, (str, torch.device)) and torch.device(device).type == "cpu"
    return name == "cpu"


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _entry_of_table(table: torch.Tensor, index: Any) -> HostScalar | None:
    """`table[index]`, where that is one number of a tensor of the host at a place that differs from step to step."""
    index = index if type(index) is tuple else (index,)
    if len(index) != table.dim() or table.requires_grad or table.dtype is torch.bool or table.is_complex():
        return None
    if not all(isinstance(i, int) for i in index):
        return None
    scope = next(i._scope for i in index if isinstance(i, HostScalar))
    value = table[tuple(map(plain_number, index))].item()
    places = ", ".join(map(code_of, index))
    made: HostScalar = make_scalar(scope, f"{scope.host.name(table, 'the tensor')}[{places}].item()", value)
    return made


def _has_scalar(values: Any) -> bool:
    for value in values:
        if isinstance(value, HostScalar):
            return True
        if type(value) in (list, tuple) and _has_scalar(value):
            return True
        if type(value) is slice and _has_scalar((value.start, value.stop, value.step)):
            return True
    return False


def _convert(value: Any, convert: Callable[[HostScalar], Any]) -> Any:
    if isinstance(value, HostScalar):
        return convert(value)
    if type(value) in (list, tuple):
        return type(value)(_convert(v, _number) for v in value)
    if type(value) is slice:
        return slice(*(_convert(v, _number) for v in (value.start, value.stop, value.step)))
    return value


def _holds_traced(data: Any) -> bool:
    if isinstance(data, (HostScalar, CsxTensor)):
        return True
    return isinstance(data, (list, tuple)) and any(_holds_traced(item) for item in data)
