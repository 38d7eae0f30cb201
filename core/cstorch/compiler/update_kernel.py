"""C++ for the updates of many parameters by one kernel: every operand is read once and written once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

aten = torch.ops.aten

C_TYPES = {torch.float32: "float", torch.float64: "double", torch.int64: "int64_t", torch.bool: "bool"}


class Value(NamedTuple):
    """What one operator of an update computes.

    Attributes:
        target: The operator.
        args: Its arguments: ("operand", i), ("value", i) for an earlier value, or a number.
        common: The dtype that PyTorch compares the arguments in.
        dtype: Of the result.
        is_number: Whether the result is a 0-d tensor.
    """

    target: Any
    args: tuple[Any, ...]
    common: torch.dtype
    dtype: torch.dtype
    is_number: bool


def _function(name: str) -> Callable[..., str]:
    return lambda *args: f"cstorch_{name}({', '.join(args)})"


def _in_order(op: str) -> Callable[..., str]:
    return lambda x, y: f"({x} {op} {y})"


_PLAIN: dict[str, Callable[..., str]] = {
    **{name: _in_order(op) for name, op in {"add": "+", "sub": "-", "mul": "*", "div": "/"}.items()},
    **{name: _function(name) for name in ("neg", "abs", "sqrt", "rsqrt", "reciprocal", "sign", "pow", "lerp")},
    **{name: _function(name) for name in ("maximum", "minimum")},
    "rsub": lambda x, y: f"({y} - {x})",
    "addcmul": lambda x, y, z, factor: f"({x} + {factor} * {y} * {z})",
    "addcdiv": lambda x, y, z, factor: f"({x} + {factor} * {y} / {z})",
    "copy": lambda x, y: y,
    "_to_copy": lambda x: x,
}
_POWERS: dict[float, Callable[[str], str]] = {
    0.5: _function("sqrt"),
    2.0: lambda x: f"({x} * {x})",
    3.0: lambda x: f"({x} * {x} * {x})",
}
_COMPARISONS = {"gt": ">", "lt": "<", "ge": ">=", "le": "<=", "eq": "==", "ne": "!="}

_COMPARE: dict[Any, Callable[..., str]] = {
    getattr(getattr(aten, comparison), overload): _in_order(op)
    for comparison, op in _COMPARISONS.items()
    for overload in ("Scalar", "Tensor")
}
_FLOAT: dict[Any, Callable[..., str]] = {}
"""Operators that make of float numbers a float number, by which their arguments are cast beforehand."""
IN_PLACE: set[Any] = set()
"""Those of them that change their first argument."""

for _operator, _expression in _PLAIN.items():
    for _spelling in (_operator, f"{_operator}_"):
        _packet = getattr(aten, _spelling, None)
        for _overload in ("default", "Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar"):
            if _packet is not None and _overload in _packet.overloads():
                _FLOAT[getattr(_packet, _overload)] = _expression
                if _spelling.endswith("_"):
                    IN_PLACE.add(getattr(_packet, _overload))
_FLOAT[aten.pow.Scalar] = _function("pow")

_WHERE = aten.where.self
WITH_FACTOR = {aten.addcmul.default, aten.addcmul_.default, aten.addcdiv.default, aten.addcdiv_.default}
"""Operators whose keyword `value` is the last argument of their `Value`."""
EXPRESSIONS: frozenset[Any] = frozenset({*_FLOAT, *_COMPARE, _WHERE})
"""The operators that a kernel can do."""

HEADER = """
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>
#include <omp.h>
#include <ATen/cpu/vec/vec.h>

// Each for single numbers and for vectors of them, rounded as PyTorch's kernels round.
template <typename T> using CstorchVector = at::vec::Vectorized<T>;
#define CSTORCH_UNARY(name, number, vector)                                              \\
  template <typename T> static inline T cstorch_##name(T x) { return number; }           \\
  template <typename T> static inline CstorchVector<T> cstorch_##name(CstorchVector<T> x) { return vector; }
CSTORCH_UNARY(neg, -x, x.neg())
CSTORCH_UNARY(abs, std::abs(x), x.abs())
CSTORCH_UNARY(sqrt, std::sqrt(x), x.sqrt())
CSTORCH_UNARY(rsqrt, 1 / std::sqrt(x), CstorchVector<T>(1) / x.sqrt())
CSTORCH_UNARY(reciprocal, 1 / x, CstorchVector<T>(1) / x)
CSTORCH_UNARY(sign, T((x > 0) - (x < 0)), x.sgn())
#define CSTORCH_BINARY(name, number, vector)                                             \\
  template <typename T> static inline T cstorch_##name(T x, T y) { return number; }      \\
  template <typename T> static inline CstorchVector<T> cstorch_##name(CstorchVector<T> x, CstorchVector<T> y) { \\
    return vector;                                                                       \\
  }
CSTORCH_BINARY(pow, std::pow(x, y), x.pow(y))
CSTORCH_BINARY(maximum, x != x ? x : x > y ? x : y, at::vec::maximum(x, y))
CSTORCH_BINARY(minimum, x != x ? x : x < y ? x : y, at::vec::minimum(x, y))
template <typename T> static inline T cstorch_where(bool condition, T x, T y) { return condition ? x : y; }
template <typename T>
static inline CstorchVector<T> cstorch_where(CstorchVector<T> condition, CstorchVector<T> x, CstorchVector<T> y) {
  return CstorchVector<T>::blendv(y, x, condition);
}
template <typename T> static inline T cstorch_fma(T x, T y, T z) {
#ifdef __FMA__
  return std::fma(x, y, z);
#else
  return x * y + z;
#endif
}
template <typename T>
static inline CstorchVector<T> cstorch_fma(CstorchVector<T> x, CstorchVector<T> y, CstorchVector<T> z) {
  return at::vec::fmadd(x, y, z);
}
template <typename T> static inline T cstorch_lerp(T from, T to, T weight) {
  const auto near = cstorch_abs(weight) < T(0.5);
  return cstorch_fma(cstorch_where(near, weight, weight - T(1)), to - from, cstorch_where(near, from, to));
}
"""

_DRIVER = """
extern "C" void {name}(void* const* all, const int64_t* sizes, int64_t rows, int64_t total, int threads) {{
  std::vector<Numbers> numbers(rows);
  for (int64_t row = 0; row < rows; ++row) compute(all + row * {operands}, numbers[row]);
  const auto work = [&](int64_t begin, int64_t end) {{
    int64_t at = 0;
    for (int64_t row = 0; row < rows && at < end; at += sizes[row++]) {{
      const int64_t from = std::max<int64_t>(begin - at, 0), to = std::min<int64_t>(end - at, sizes[row]);
      if (from < to) update(all + row * {operands}, numbers[row], from, to);
    }}
  }};
  if (threads == 1 || total < 16384) return work(0, total);
#pragma omp parallel num_threads(threads)
  {{
    const int64_t chunk = (total / omp_get_num_threads() + 16) / 16 * 16, begin = omp_get_thread_num() * chunk;
    work(begin, std::min<int64_t>(total, begin + chunk));
  }}
}}
"""


Operands = list[tuple[torch.dtype, bool]]
"""The dtype of each operand of a row, and whether it is a 0-d tensor."""


def kernel_source(name: str, operands: Operands, values: list[Value], stores: list[tuple[int, int]]) -> str:
    """C++ of a function `name(operands of all rows, sizes, rows, elements of all rows, threads)`.

    Args:
        name: Of the function.
        operands: What a row has.
        values: What is computed, in order.
        stores: The operands that are written to, and the value that each gets.
    """
    pointer = [f"static_cast<{C_TYPES[dtype]}*>(e[{i}])" for i, (dtype, _) in enumerate(operands)]
    numbers = [i for i, value in enumerate(values) if value.is_number]
    fields = [f"{C_TYPES[operands[i][0]]} o{i}" for i in range(len(operands)) if operands[i][1]]
    fields += [f"{C_TYPES[values[i].dtype]} v{i}" for i in numbers]
    first = [f"s.o{i} = *{pointer[i]};" for i in range(len(operands)) if operands[i][1]]
    first += [f"s.v{i} = {_expression_of(values[i], values, operands, '')};" for i in numbers]
    first += [f"*{pointer[i]} = s.v{value};" for i, value in stores if operands[i][1]]
    large = [i for i in range(len(operands)) if not operands[i][1]]
    written = {i: value for i, value in stores if not operands[i][1]}
    begin = [
        f"{'' if i in written else 'const '}{C_TYPES[operands[i][0]]}* __restrict p{i} = {pointer[i]};" for i in large
    ]
    kinds = {operands[i][0] for i in large} | {value.dtype for value in values if not value.is_number} - {torch.bool}
    is_vector = len(kinds) == 1 and all(kind.is_floating_point for kind in kinds)
    loops = []
    if is_vector:
        vector = f"CstorchVector<{C_TYPES[kinds.pop()]}>"
        begin += [f"using V = {vector};", "int64_t i = begin;"]
        loops += ["for (; i + V::size() <= end; i += V::size()) {"]
        loops += [*_body(operands, values, written, "V"), "}", "for (; i < end; ++i) {"]
    else:
        loops += ["#pragma GCC ivdep", "for (int64_t i = begin; i < end; ++i) {"]
    loops += [*_body(operands, values, written, ""), "}"]
    lines = [
        f"namespace {name}_parts {{",
        f"struct Numbers {{ {' '.join(field + ';' for field in fields)} }};",
        "static void compute(void* const* e, Numbers& s) {",
        *(f"  {line}" for line in first),
        "}",
        "static void update(void* const* e, const Numbers s, int64_t begin, int64_t end) {",
        *(f"  {line}" for line in begin),
        *(f"  {line}" for line in loops),
        "}",
        _DRIVER.format(name=name, operands=len(operands)),
        "}",
    ]
    return "\n".join(lines)


def _body(operands: Operands, values: list[Value], written: dict[int, int], vector: str) -> list[str]:
    """The statements for element i of every operand, or for the vector that begins there."""
    used = sorted({arg[1] for value in values for arg in value.args if isinstance(arg, tuple) and arg[0] == "operand"})
    lines = [
        f"const auto o{i} = {f'{vector}::loadu(p{i} + i)' if vector else f'p{i}[i]'};"
        for i in used
        if not operands[i][1]
    ]
    for i, value in enumerate(values):
        if not value.is_number:
            kind = "auto" if vector else C_TYPES[value.dtype]
            lines.append(f"const {kind} v{i} = {_expression_of(value, values, operands, vector)};")
    for i, n in written.items():
        stored = _cast(("value", n), operands[i][0], values, operands, vector)
        lines.append(f"({stored}).store(p{i} + i);" if vector else f"p{i}[i] = {stored};")
    return [f"  {line}" for line in lines]


def _number(value: float) -> str:
    text = repr(float(value))
    return {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}.get(text, text)


def _cast(arg: Any, dtype: torch.dtype, values: list[Value], operands: Operands, vector: str) -> str:
    """An argument as a number of `dtype`, or as a vector of such."""
    if not isinstance(arg, tuple):
        given, is_number = _number(arg), True
    else:
        kind, i = arg
        is_number = operands[i][1] if kind == "operand" else values[i].is_number
        given = f"{'s.' if is_number else ''}{kind[0]}{i}"
    if not vector:
        return f"{C_TYPES[dtype]}({given})"
    if not is_number:
        return given
    return f"{C_TYPES[dtype]}({given})" if dtype is torch.bool else f"{vector}({C_TYPES[dtype]}({given}))"


def _expression_of(value: Value, values: list[Value], operands: Operands, vector: str) -> str:
    def given(dtype: torch.dtype) -> list[str]:
        return [_cast(arg, dtype, values, operands, vector) for arg in value.args]

    if value.target is _WHERE:
        return f"cstorch_where({given(torch.bool)[0]}, {', '.join(given(value.dtype)[1:])})"
    if value.target in _COMPARE:
        return _COMPARE[value.target](*given(value.common))
    expression = _FLOAT[value.target]
    if expression is _PLAIN["pow"] and not isinstance(value.args[1], tuple) and float(value.args[1]) in _POWERS:
        return _POWERS[float(value.args[1])](given(value.dtype)[0])
    return expression(*given(value.dtype))
