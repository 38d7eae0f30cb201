"""Host numbers in a trace: a learning rate or a batch index is read anew at each step, never frozen.

A HostScalar looks like the number it stands for. Arithmetic on it builds an expression; a comparison or a
truth test records its outcome as a guard of the program; where it meets a tensor it becomes a float64 or int64
input, evaluated on the host before each run. Where Python insists on a plain number (an index, `range`, `math.sqrt`)
its value itself becomes a guard. The expressions are Python source over `groups` (the param_groups of the
optimizers that the step uses) and `args` (the numbers the step was called with).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

Number = int | float


class ScalarScope:
    """The host scalars, guards and scalar inputs of one trace."""

    def __init__(self) -> None:
        self.groups: list[dict[str, Any]] = []
        self.args: list[Number] = []
        self.guards: dict[str, Any] = {}
        self.as_tensor: Callable[[HostScalar], torch.Tensor] | None = None

    def guard(self, code: str, outcome: Any) -> Any:
        """Record that this program holds for `code` evaluating to `outcome` only."""
        self.guards.setdefault(code, outcome)
        return outcome

    def argument(self, position: int) -> Any:
        """The number at `position` of the numbers that the step was called with."""
        return make_scalar(self, f"args[{position}]", self.args[position])

    def group_entries(self, group: dict[str, Any]) -> dict[str, Any]:
        """Host scalars for the numbers of a param_group, by key; tuples of numbers become tuples."""
        index = next((i for i, known in enumerate(self.groups) if known is group), len(self.groups))
        if index == len(self.groups):
            self.groups.append(group)
        entries: dict[str, Any] = {}
        for key, value in group.items():
            code = f"groups[{index}][{key!r}]"
            if _is_number(value):
                entries[key] = make_scalar(self, code, value)
            elif isinstance(value, tuple) and value and all(map(_is_number, value)):
                entries[key] = tuple(make_scalar(self, f"{code}[{i}]", v) for i, v in enumerate(value))
        return entries


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _code(value: Any) -> str:
    if isinstance(value, HostScalar):
        return value._code
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value)


def _hint(value: Any) -> Any:
    return value._hint if isinstance(value, HostScalar) else value


class HostScalar:
    """A number of the host, standing in for `int` or `float` (isinstance says so too).

    Its two kinds derive from torch.SymInt and torch.SymFloat, so that PyTorch's argument parser takes them
    where it takes numbers and hands them to the function mode of the trace, which decides what becomes of them.
    """

    _scope: ScalarScope
    _code: str
    _hint: Number

    def __init__(self, scope: ScalarScope, code: str, hint: Number) -> None:
        self._scope, self._code, self._hint = scope, code, hint

    @property
    def __class__(self) -> type:
        """`isinstance(x, float)` holds, while C code that wants a float must ask `__float__`."""
        return type(self._hint)

    @__class__.setter
    def __class__(self, value: type) -> None:
        raise TypeError("the class of a host scalar cannot be assigned")

    def _value(self) -> Number:
        return self._scope.guard(self._code, self._hint)  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return bool(self._scope.guard(f"bool({self._code})", bool(self._hint)))

    def __float__(self) -> float:
        return float(self._value())

    def __int__(self) -> int:
        return int(self._value())

    def __index__(self) -> int:
        return operator.index(self._value())  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return hash(self._value())

    def __repr__(self) -> str:
        return repr(self._value())

    def __str__(self) -> str:
        return str(self._value())

    def __format__(self, spec: str) -> str:
        return format(self._value(), spec)

    def __round__(self, digits: int | None = None) -> Any:
        return round(self._value(), digits)

    def __trunc__(self) -> int:
        return math.trunc(self._value())

    def __floor__(self) -> int:
        return math.floor(self._value())

    def __ceil__(self) -> int:
        return math.ceil(self._value())

    def __reduce__(self) -> Any:
        return type(self._hint), (self._value(),)

    def is_integer(self) -> bool:
        """As `float.is_integer`; guards on the value."""
        return float(self._value()).is_integer()

    def item(self) -> Number:
        """The plain number; guards on the value."""
        return self._value()


class HostInt(HostScalar, torch.SymInt):
    """A host integer."""


class HostFloat(HostScalar, torch.SymFloat):
    """A host float."""


def make_scalar(scope: ScalarScope, code: str, hint: Number) -> Any:
    """The host scalar for an expression whose present value is `hint`."""
    return (HostInt if isinstance(hint, int) else HostFloat)(scope, code, hint)


def plain_number(value: Any) -> Any:
    """`value` with host scalars, also in a tuple, as the numbers that they are now; records no guard."""
    if isinstance(value, tuple):
        return tuple(map(plain_number, value))
    return value._hint if isinstance(value, HostScalar) else value


def _unary(name: str, apply: Callable[[Any], Any], template: str) -> None:
    def method(self: HostScalar) -> Any:
        return make_scalar(self._scope, template.format(self._code), apply(self._hint))

    setattr(HostScalar, name, method)


def _binary(name: str, apply: Callable[[Any, Any], Any], symbol: str) -> None:
    def combine(scope: ScalarScope, left: Any, right: Any) -> Any:
        return make_scalar(scope, f"({_code(left)} {symbol} {_code(right)})", apply(_hint(left), _hint(right)))

    def tensor_of(scalar: HostScalar) -> torch.Tensor:
        assert scalar._scope.as_tensor is not None
        return scalar._scope.as_tensor(scalar)

    def forward(self: HostScalar, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return apply(tensor_of(self), other)
        if not isinstance(other, (int, float)):
            return NotImplemented
        return combine(self._scope, self, other)

    def reflected(self: HostScalar, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return apply(other, tensor_of(self))
        if not isinstance(other, (int, float)):
            return NotImplemented
        return combine(self._scope, other, self)

    setattr(HostScalar, f"__{name}__", forward)
    setattr(HostScalar, f"__r{name}__", reflected)


def _comparison(name: str, apply: Callable[[Any, Any], Any], symbol: str) -> None:
    def method(self: HostScalar, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            assert self._scope.as_tensor is not None
            return apply(self._scope.as_tensor(self), other)
        if not isinstance(other, (int, float)):
            return NotImplemented
        return self._scope.guard(f"({self._code} {symbol} {_code(other)})", apply(self._hint, _hint(other)))

    setattr(HostScalar, f"__{name}__", method)


for _name, _apply, _template in (
    ("__neg__", operator.neg, "(-{})"),
    ("__pos__", operator.pos, "(+{})"),
    ("__abs__", abs, "abs({})"),
):
    _unary(_name, _apply, _template)
for _name, _operate, _symbol in (
    ("add", operator.add, "+"),
    ("sub", operator.sub, "-"),
    ("mul", operator.mul, "*"),
    ("truediv", operator.truediv, "/"),
    ("floordiv", operator.floordiv, "//"),
    ("mod", operator.mod, "%"),
    ("pow", operator.pow, "**"),
):
    _binary(_name, _operate, _symbol)
for _name, _operate, _symbol in (
    ("eq", operator.eq, "=="),
    ("ne", operator.ne, "!="),
    ("lt", operator.lt, "<"),
    ("le", operator.le, "<="),
    ("gt", operator.gt, ">"),
    ("ge", operator.ge, ">="),
):
    _comparison(_name, _operate, _symbol)


def compile_scalars(codes: list[str], groups: list[dict[str, Any]]) -> Callable[[list[Number]], tuple[Number, ...]]:
    """One function from the numbers of a call to the values of all `codes`."""
    body = "".join(f"{code}, " for code in codes)
    made: Callable[[list[Number]], tuple[Number, ...]] = eval(f"lambda args: ({body})", {"groups": groups})
    return made


def compile_guards(guards: dict[str, Any], groups: list[dict[str, Any]]) -> Callable[[list[Number]], bool]:
    """One function from the numbers of a call to whether every guard has its recorded outcome."""
    tests = " and ".join(f"{code} == {_code(outcome)}" for code, outcome in guards.items()) or "True"
    made: Callable[[list[Number]], bool] = eval(f"lambda args: {tests}", {"groups": groups})
    return made
