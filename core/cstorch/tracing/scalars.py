"""Host numbers in a trace: a learning rate or a batch index is read anew at each step, never frozen.

A HostScalar looks like the number it stands for. Arithmetic on it builds an expression; a comparison or a
truth test records its outcome as a guard of the program; where it meets a tensor it becomes a float64 or int64
input, evaluated on the host before each run. Where Python insists on a plain number (an index, `range`, a format)
its value itself becomes a guard. The expressions are Python source over `args` (the numbers the step was called
with) and the variables of the host code, which read param_groups and the like.
"""

from __future__ import annotations

import contextlib
import functools
import math
import numbers
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cstorch.tracing.host_code import HostCode, literal

Number = int | float


class ScalarScope:
    """The host scalars, guards and scalar inputs of one trace."""

    def __init__(self) -> None:
        self.args: list[Number] = []
        self.host = HostCode()
        self.guards: dict[str, Any] = {}
        self.words: dict[str, str] = {}  # what to say when a guard fails
        self.hints: dict[str, Number] = {}
        self.as_tensor: Callable[[HostScalar], torch.Tensor] | None = None
        self.in_optimizer = False

    def guard(self, code: str, outcome: Any, words: str | None = None) -> Any:
        """Record that this program holds for `code` evaluating to `outcome` only; `words` say what else it would be."""
        self.guards.setdefault(code, outcome)
        if words is not None:
            self.words[code] = words
        return outcome

    def object(self, value: Any) -> str:
        """The code that stands for `value` itself in guards."""
        return self.host.name(value)

    def tensor_beside(self, scalar: HostScalar, tensors: list[torch.Tensor], bound: bool = False) -> torch.Tensor:
        """`scalar` as a tensor that, like a Python number, does not decide the dtype of the tensors that it meets.

        A tensor without dimensions gives way only to tensors with some. In an optimizer's step those without are
        step counters and the like, which eager code reads as Python floats: there double precision is right,
        except for a `bound`, which bounds a tensor.
        """
        assert self.as_tensor is not None
        made = self.as_tensor(scalar)
        kind = _kind_of(made.dtype)
        if any(t.dim() > 0 and _kind_of(t.dtype) >= kind for t in tensors) or (self.in_optimizer and not bound):
            return made
        dtype = functools.reduce(torch.promote_types, (t.dtype for t in tensors))
        if _kind_of(dtype) < kind:
            dtype = torch.get_default_dtype() if kind == 2 else torch.int64
        return made.to(dtype)

    def dtype_of(self, scalar: HostScalar) -> torch.dtype:
        """The dtype that feeds `scalar`: int64 for an int of the call or a draw, else float64."""
        is_int = isinstance(scalar._hint, int) and self.host.integers.issuperset(self.host.variables(scalar._code))
        return torch.int64 if is_int else torch.float64

    def argument(self, position: int) -> Any:
        """The number at `position` of the numbers that the step was called with."""
        return make_scalar(self, f"args[{position}]", self.args[position])


def _kind_of(dtype: torch.dtype) -> int:
    """Where `dtype` stands when tensors of several dtypes meet: bool, int, float, complex."""
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else int(dtype != torch.bool)


def is_number(value: Any) -> bool:
    """Whether `value` is an int or a float, and no bool."""
    return type(value) in (int, float)


def code_of(value: Any) -> str:
    """The expression for a host scalar or a plain number."""
    if isinstance(value, HostScalar):
        return value._code
    return literal(value)


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

    def __complex__(self) -> complex:
        return complex(self._value())

    def __int__(self) -> int:
        return int(self._scope.guard(f"int({self._code})", int(self._hint)))

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
        digits = None if digits is None else operator.index(digits)
        return make_scalar(self._scope, f"round({self._code}, {digits})", round(self._hint, digits))

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __reduce__(self) -> Any:
        return type(self._hint), (self._value(),)

    def __copy__(self) -> HostScalar:
        return self

    def __deepcopy__(self, memo: Any) -> HostScalar:
        return self

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        import numpy

        return numpy.asarray(self._value(), dtype=dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Arithmetic with numpy's scalars stays symbolic; any other numpy function gets the value, as a guard."""
        apply = _UFUNCS.get(ufunc.__name__)
        if apply is not None and method == "__call__" and not kwargs:
            plain = [_plain_operand(value) for value in inputs]
            if all(isinstance(value, (int, float)) for value in plain):
                return apply(*plain)
        inputs = tuple(value._value() if isinstance(value, HostScalar) else value for value in inputs)
        return getattr(ufunc, method)(*inputs, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """What int and float have beside arithmetic (`bit_length`, `hex`, ...); guards on the value."""
        if name.startswith("_") or not hasattr(type(self._hint), name):
            raise AttributeError(f"{type(self._hint).__name__!r} object has no attribute {name!r}")
        return getattr(self._value(), name)

    def item(self) -> Number:
        """The plain number; guards on the value."""
        return self._value()


class HostInt(HostScalar, torch.SymInt):
    """A host integer."""


class HostFloat(HostScalar, torch.SymFloat):
    """A host float."""


for _kind in (HostInt, HostFloat):
    for _name in ("as_integer_ratio", "bit_length", "conjugate", "hex", "is_integer"):
        if _name in dir(_kind):  # torch's own would ask for a symbolic shape

            def _asked(self: HostScalar, name: str = _name) -> Any:
                return getattr(self._value(), name)()

            setattr(_kind, _name, _asked)


def make_scalar(scope: ScalarScope, code: str, hint: Number) -> Any:
    """The host scalar for an expression whose present value is `hint`."""
    return (HostInt if isinstance(hint, int) else HostFloat)(scope, code, hint)


def plain_number(value: Any) -> Any:
    """`value` with host scalars, also in a tuple or list, as the numbers that they are now; records no guard."""
    if type(value) in (tuple, list) and any(isinstance(part, HostScalar) for part in value):
        return type(value)(map(plain_number, value))
    return value._hint if isinstance(value, HostScalar) else value


def _plain_operand(value: Any) -> Any:
    """A number of numpy as the Python number that it is."""
    is_numpy = type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0
    return value.item() if is_numpy else value


def _combine(symbol: str, apply: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """`left symbol right`, where one of them is a host scalar at least."""
    scope = left._scope if isinstance(left, HostScalar) else right._scope
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        if isinstance(left, HostScalar):
            return apply(scope.tensor_beside(left, [right]), right)
        return apply(left, scope.tensor_beside(right, [left]))
    left, right = _plain_operand(left), _plain_operand(right)
    if not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
        if not (isinstance(left, numbers.Number) and isinstance(right, numbers.Number)):
            return NotImplemented
        return apply(*(v._value() if isinstance(v, HostScalar) else v for v in (left, right)))
    outcome = apply(_hint(left), _hint(right))
    code = f"({code_of(left)} {symbol} {code_of(right)})"
    if type(outcome) is bool:
        return scope.guard(code, outcome)
    if not is_number(outcome):  # a negative number to a fractional power
        return scope.guard(code, outcome)
    return make_scalar(scope, code, outcome)


def _define(name: str, apply: Callable[[Any, Any], Any], symbol: str, reflected: bool = True) -> None:
    def forward(self: HostScalar, other: Any, *modulus: Any) -> Any:
        if modulus:  # pow(a, b, m)
            return (self**other) % modulus[0]
        return _combine(symbol, apply, self, other)

    def backward(self: HostScalar, other: Any, *modulus: Any) -> Any:
        return _combine(symbol, apply, other, self)

    setattr(HostScalar, f"__{name}__", forward)
    if reflected:
        setattr(HostScalar, f"__r{name}__", backward)


def _define_unary(name: str, apply: Callable[[Any], Any], template: str) -> None:
    def method(self: HostScalar) -> Any:
        return make_scalar(self._scope, template.format(self._code), apply(self._hint))

    setattr(HostScalar, name, method)


def _larger(a: Any, b: Any) -> Any:
    return b if b > a else a


def _smaller(a: Any, b: Any) -> Any:
    return b if b < a else a


for _name, _apply, _template in (
    ("__neg__", operator.neg, "(-{})"),
    ("__pos__", operator.pos, "(+{})"),
    ("__abs__", abs, "abs({})"),
    ("__trunc__", math.trunc, "math.trunc({})"),
    ("__floor__", math.floor, "math.floor({})"),
    ("__ceil__", math.ceil, "math.ceil({})"),
    ("__sym_int__", math.trunc, "math.trunc({})"),
    ("__sym_float__", float, "float({})"),
):
    _define_unary(_name, _apply, _template)
_define_unary("__invert__", operator.invert, "(~{})")
for _name, _operate, _symbol in (
    ("add", operator.add, "+"),
    ("sub", operator.sub, "-"),
    ("mul", operator.mul, "*"),
    ("truediv", operator.truediv, "/"),
    ("floordiv", operator.floordiv, "//"),
    ("mod", operator.mod, "%"),
    ("pow", operator.pow, "**"),
    ("and", operator.and_, "&"),
    ("or", operator.or_, "|"),
    ("xor", operator.xor, "^"),
    ("lshift", operator.lshift, "<<"),
    ("rshift", operator.rshift, ">>"),
):
    _define(_name, _operate, _symbol)
for _name, _operate, _symbol in (
    ("eq", operator.eq, "=="),
    ("ne", operator.ne, "!="),
    ("lt", operator.lt, "<"),
    ("le", operator.le, "<="),
    ("gt", operator.gt, ">"),
    ("ge", operator.ge, ">="),
):
    _define(_name, _operate, _symbol, reflected=False)
setattr(HostScalar, "__sym_max__", _larger)  # noqa: B010
setattr(HostScalar, "__sym_min__", _smaller)  # noqa: B010

_UFUNCS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "true_divide": operator.truediv, "floor_divide": operator.floordiv, "remainder": operator.mod,
    "power": operator.pow, "negative": operator.neg, "absolute": abs, "maximum": _larger, "minimum": _smaller,
    "equal": operator.eq, "not_equal": operator.ne, "less": operator.lt, "less_equal": operator.le,
    "greater": operator.gt, "greater_equal": operator.ge,
}  # fmt: skip
_MATH = (
    "acos", "asin", "atan", "atan2", "copysign", "cos", "cosh", "degrees", "erf", "exp", "expm1", "fabs", "fmod",
    "hypot", "log", "log10", "log1p", "log2", "pow", "radians", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip


@contextlib.contextmanager
def symbolic_math() -> Iterator[None]:
    """Within, `math.cos(i)` and its kin of a host scalar stay symbolic: a schedule computed in the step is data."""

    def wrap(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def function(*args: Any) -> Any:
            for value in args:
                if isinstance(value, HostScalar):
                    code = f"math.{name}({', '.join(map(code_of, args))})"
                    return make_scalar(value._scope, code, original(*map(_hint, args)))
            return original(*args)

        return function

    originals = {name: getattr(math, name) for name in _MATH}
    for name, original in originals.items():
        setattr(math, name, wrap(name, original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(math, name, original)
