"""Lowerings of PyTorch's core operators on elements, shapes, indices and reductions to `jax.numpy`.

Arguments are those of the operator's schema. Shapes must be PyTorch's; dtypes need not, since every result is cast to
the one that PyTorch found. A lowering raises NotImplementedError for a form that it leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = Any
Dims = int | Sequence[int] | None


def _axes(dims: Dims) -> Any:
    """PyTorch's dims, where an empty list means all, as JAX's axis."""
    if dims is None or isinstance(dims, int):
        return dims
    return tuple(dims) or None


def _add(a: Array, b: Array, alpha: float = 1) -> Array:
    return a + b * alpha if alpha != 1 else jnp.add(a, b)


def _sub(a: Array, b: Array, alpha: float = 1) -> Array:
    return a - b * alpha if alpha != 1 else jnp.subtract(a, b)


def _sign(x: Array) -> Array:
    return jnp.sign(x) if jnp.issubdtype(x.dtype, jnp.complexfloating) else (x > 0).astype(int) - (x < 0).astype(int)


def _div(a: Array, b: Array, rounding_mode: str | None = None) -> Array:
    if rounding_mode is None:
        return jnp.true_divide(a, b)
    if rounding_mode == "floor":
        return _of_whole_numbers(jnp.floor_divide)(a, b)
    if jnp.issubdtype(jnp.result_type(a, b), jnp.integer):
        return _of_whole_numbers(lambda a, b: (a - jnp.fmod(a, b)) // b)(a, b)
    return jnp.trunc(jnp.true_divide(a, b))


def _of_whole_numbers(function: Callable[..., Array]) -> Callable[..., Array]:
    """`function(a, b)`, left to PyTorch where it might raise because of a zero among integer divisors."""

    def divide(a: Array, b: Array) -> Array:
        unknown = not isinstance(b, (int, float)) or b == 0
        if unknown and jnp.issubdtype(jnp.result_type(a, b), jnp.integer):
            raise NotImplementedError
        return function(a, b)

    return divide


def _pow(a: Array, b: Array) -> Array:
    if jnp.issubdtype(jnp.result_type(a, b), jnp.integer):
        raise NotImplementedError  # negative exponents
    return jnp.power(a, b)


def _clamp(x: Array, min: Any = None, max: Any = None) -> Array:  # noqa: A002  names of the schema
    x = x if min is None else jnp.maximum(x, min)
    return x if max is None else jnp.minimum(x, max)


def _gelu(x: Array, approximate: str = "none") -> Array:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def _elu(x: Array, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Array:
    return scale * jnp.where(x > 0, x, alpha * jnp.expm1(jnp.minimum(x, 0) * input_scale))


# -- reductions ------------------------------------------------------------------------------------------------


def _reduction(function: Callable[..., Array]) -> Callable[..., Array]:
    def reduce(x: Array, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Array:
        return function(_wide(x), axis=_axes(dim), keepdims=keepdim)

    return reduce


def _wide(x: Array) -> Array:
    """Halves as floats: PyTorch accumulates them so."""
    return x.astype(jnp.float32) if x.dtype in (jnp.bfloat16, jnp.float16) else x


def _var(x: Array, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> Array:
    return jnp.var(_wide(x), axis=_axes(dim), ddof=1 if correction is None else correction, keepdims=keepdim)


def _var_mean(x: Array, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> Array:
    return _var(x, dim, correction, keepdim), jnp.mean(_wide(x), axis=_axes(dim), keepdims=keepdim)


def _vector_norm(x: Array, ord: float = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Array:  # noqa: A002
    size, axis = jnp.abs(_wide(x)), _axes(dim)
    if ord == float("inf"):
        return jnp.max(size, axis=axis, keepdims=keepdim)
    if ord not in (1, 2):
        raise NotImplementedError
    if ord == 1:
        return jnp.sum(size, axis=axis, keepdims=keepdim)
    return jnp.sqrt(jnp.sum(size * size, axis=axis, keepdims=keepdim))


def _arg(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda x, dim=None, keepdim=False: function(x, axis=dim, keepdims=keepdim)


# -- order -----------------------------------------------------------------------------------------------------


def _order(x: Array, dim: int, descending: bool) -> Array:
    """Places in sorted order, equal ones as they stand; NaN is the largest."""
    if not descending:
        return jnp.argsort(x, axis=dim, stable=True)
    back = jnp.argsort(jnp.flip(x, dim), axis=dim, stable=True)
    return x.shape[dim] - 1 - jnp.flip(back, dim)


def _sort(x: Array, dim: int = -1, descending: bool = False, stable: bool | None = None) -> Any:
    if x.ndim == 0:
        raise NotImplementedError
    order = _order(x, dim, descending)
    return jnp.take_along_axis(x, order, dim), order


def _topk(x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:  # noqa: A002
    if x.ndim == 0:
        raise NotImplementedError
    order = lax.slice_in_dim(_order(x, dim, largest), 0, k, axis=dim % x.ndim)
    return jnp.take_along_axis(x, order, dim), order


# -- shapes ----------------------------------------------------------------------------------------------------


def _view(x: Array, size: Sequence[int]) -> Array:
    return jnp.reshape(x, tuple(size))


def _expand(x: Array, size: Sequence[int], implicit: bool = False) -> Array:
    added = len(size) - x.ndim
    shape = [x.shape[i - added] if n == -1 else n for i, n in enumerate(size)]
    return jnp.broadcast_to(x, shape)


def _slice(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    index = [slice(None)] * x.ndim
    index[dim] = slice(start, end, step)
    return x[tuple(index)]


def _slice_scatter(
    x: Array, src: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    index = [slice(None)] * x.ndim
    index[dim] = slice(start, end, step)
    return x.at[tuple(index)].set(src.astype(x.dtype))


def _select(x: Array, dim: int, index: int) -> Array:
    return lax.index_in_dim(x, index, dim, keepdims=False)


def _select_scatter(x: Array, src: Array, dim: int, index: int) -> Array:
    place: list[Any] = [slice(None)] * x.ndim
    place[dim] = index
    return x.at[tuple(place)].set(src.astype(x.dtype))


def _split(x: Array, size: int | Sequence[int], dim: int = 0) -> Any:
    length = x.shape[dim]
    sizes = [min(size, length - at) for at in range(0, length, size)] if isinstance(size, int) else list(size)
    return tuple(jnp.split(x, np.cumsum(sizes)[:-1].tolist(), axis=dim))


def _squeeze(x: Array, dim: Dims = None) -> Array:
    dims = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return jnp.squeeze(x, tuple(d for d in dims if x.ndim and x.shape[d] == 1))


def _constant_pad_nd(x: Array, pad: Sequence[int], value: float = 0) -> Array:
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    widths = [(0, 0, 0)] * (x.ndim - len(pairs)) + [(low, high, 0) for low, high in pairs]
    return lax.pad(x, jnp.asarray(value, x.dtype), widths)


def _cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    return jnp.concatenate([t for t in tensors if t.shape != (0,)] or list(tensors), axis=dim)


def _as_made(x: Array, *args: Any, **kwargs: Any) -> Array:
    return x


def _full(size: Sequence[int], value: Any, **kwargs: Any) -> Array:
    return jnp.full(tuple(size), value)


def _full_like(x: Array, value: Any, **kwargs: Any) -> Array:
    return jnp.full(x.shape, value)


def _arange(start: Any, end: Any = None, step: Any = 1, **kwargs: Any) -> Array:
    return jnp.arange(start) if end is None else jnp.arange(start, end, step)


# -- indices ---------------------------------------------------------------------------------------------------


def _along(x: Array, dim: int, index: Array) -> tuple[Any, ...]:
    """The places in `x` that gather and scatter mean by `index`."""
    grid = np.ogrid[tuple(slice(n) for n in index.shape)]
    places: list[Any] = list(grid)
    places[dim] = index
    return tuple(places)


def _gather(x: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    if x.ndim == 0 or index.ndim == 0:
        raise NotImplementedError
    return x.at[_along(x, dim, index)].get(mode="fill")


def _scatter(x: Array, dim: int, index: Array, src: Any, reduce: str | None = None) -> Array:
    if reduce is not None or x.ndim == 0 or index.ndim == 0:
        raise NotImplementedError
    src = src if jnp.ndim(src) == 0 else src[tuple(slice(n) for n in index.shape)]
    return x.at[_along(x, dim, index)].set(jnp.asarray(src, x.dtype))


def _scatter_add(x: Array, dim: int, index: Array, src: Array) -> Array:
    if x.ndim == 0 or index.ndim == 0:
        raise NotImplementedError
    return x.at[_along(x, dim, index)].add(src[tuple(slice(n) for n in index.shape)])


def _places(indices: Sequence[Any]) -> tuple[Any, ...]:
    if any(index is not None and index.dtype in (jnp.bool_, jnp.uint8) for index in indices):
        raise NotImplementedError  # masks
    return tuple(slice(None) if index is None else index for index in indices)


def _index(x: Array, indices: Sequence[Any]) -> Array:
    return x.at[_places(indices)].get(mode="fill")


def _index_put(x: Array, indices: Sequence[Any], values: Array, accumulate: bool = False) -> Array:
    place, values = x.at[_places(indices)], values.astype(x.dtype)
    return place.add(values) if accumulate else place.set(values)


def _index_select(x: Array, dim: int, index: Array) -> Array:
    if x.ndim == 0:
        raise NotImplementedError
    return jnp.take(x, jnp.atleast_1d(index), axis=dim, mode="fill")


def _embedding(weight: Array, indices: Array, *args: Any) -> Array:
    return jnp.take(weight, indices, axis=0, mode="fill")


def _addmm(c: Array, a: Array, b: Array, beta: float = 1, alpha: float = 1) -> Array:
    return c * beta + (a @ b) * alpha if (beta, alpha) != (1, 1) else c + a @ b


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(jnp, name)
        for name in (
            *("abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "cos", "cosh", "exp", "exp2"),
            *("expm1", "floor", "hypot", "isinf", "isnan", "log", "log10", "log1p", "log2", "logical_and"),
            *("logical_not", "logical_or", "logical_xor", "maximum", "minimum", "reciprocal", "signbit", "sin"),
            *("sinh", "sqrt", "square", "tan", "tanh", "trunc", "bitwise_and", "bitwise_or", "bitwise_xor"),
            *("bitwise_not", "fmin", "fmax", "conj"),
        )
    },
    "add": _add,
    "sub": _sub,
    "rsub": lambda a, b, alpha=1: _sub(b, a, alpha),
    "mul": jnp.multiply,
    "div": _div,
    "remainder": _of_whole_numbers(jnp.remainder),
    "fmod": _of_whole_numbers(jnp.fmod),
    "sign": _sign,
    "pow": _pow,
    "neg": jnp.negative,
    "rsqrt": lambda x: lax.rsqrt(x) if jnp.issubdtype(x.dtype, jnp.floating) else 1 / jnp.sqrt(x),
    "sigmoid": jax.nn.sigmoid,
    "relu": jax.nn.relu,
    "elu": _elu,
    "leaky_relu": lambda x, slope=0.01: jnp.where(x > 0, x, x * slope),
    "gelu": _gelu,
    "erf": jax.scipy.special.erf,
    "erfc": jax.scipy.special.erfc,
    "round": lambda x, decimals=0: jnp.round(x, decimals),
    "clamp": _clamp,
    "clamp_min": lambda x, least: _clamp(x, least),
    "clamp_max": lambda x, most: _clamp(x, max=most),
    "where": jnp.where,
    "masked_fill": lambda x, mask, value: jnp.where(mask, value, x),
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}

_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": _reduction(jnp.sum),
    "mean": _reduction(jnp.mean),
    "prod": _reduction(jnp.prod),
    "amax": _reduction(jnp.max),
    "amin": _reduction(jnp.min),
    "any": _reduction(jnp.any),
    "all": _reduction(jnp.all),
    "var": _var,
    "var_mean": _var_mean,
    "linalg_vector_norm": _vector_norm,
    "argmax": _arg(jnp.argmax),
    "argmin": _arg(jnp.argmin),
    "cumsum": lambda x, dim, dtype=None: jnp.cumsum(_wide(x), axis=dim) if x.ndim else x,
    "cumprod": lambda x, dim, dtype=None: jnp.cumprod(_wide(x), axis=dim) if x.ndim else x,
    "sort": _sort,
    "topk": _topk,
    "_softmax": lambda x, dim, half_to_float: jax.nn.softmax(_wide(x), axis=dim),
    "_log_softmax": lambda x, dim, half_to_float: jax.nn.log_softmax(_wide(x), axis=dim),
}

_SHAPES: dict[str, Callable[..., Any]] = {
    "view": _view,
    "reshape": _view,
    "_unsafe_view": _view,
    "permute": jnp.transpose,
    "transpose": jnp.swapaxes,
    "t": jnp.transpose,
    "expand": _expand,
    "slice": _slice,
    "slice_scatter": _slice_scatter,
    "select": _select,
    "select_scatter": _select_scatter,
    "split": _split,
    "split_with_sizes": _split,
    "squeeze": _squeeze,
    "unsqueeze": jnp.expand_dims,
    "constant_pad_nd": _constant_pad_nd,
    "cat": _cat,
    "stack": lambda tensors, dim=0: jnp.stack(tensors, axis=dim),
    "diagonal": jnp.diagonal,
    "flip": lambda x, dims: jnp.flip(x, tuple(dims)),
    "repeat": lambda x, repeats: jnp.tile(x, tuple(repeats)),
    "clone": _as_made,
    "detach": _as_made,
    "alias": _as_made,
    "_to_copy": _as_made,
    "copy": lambda x, src, non_blocking=False: jnp.broadcast_to(src, x.shape),
    "lift_fresh": _as_made,
    "full": _full,
    "full_like": _full_like,
    "zeros": lambda size, **kwargs: jnp.zeros(tuple(size)),
    "ones": lambda size, **kwargs: jnp.ones(tuple(size)),
    "zeros_like": lambda x, **kwargs: jnp.zeros(x.shape),
    "ones_like": lambda x, **kwargs: jnp.ones(x.shape),
    "empty": lambda size, **kwargs: jnp.zeros(tuple(size)),
    "empty_permuted": lambda size, order, **kwargs: jnp.zeros(tuple(size)),
    "empty_like": lambda x, **kwargs: jnp.zeros(x.shape),
    "scalar_tensor": lambda value, **kwargs: jnp.asarray(value),
    "arange": _arange,
}

_INDICES: dict[str, Callable[..., Any]] = {
    "gather": _gather,
    "scatter": _scatter,
    "scatter_add": _scatter_add,
    "index": _index,
    "_unsafe_index": _index,
    "index_put": _index_put,
    "_unsafe_index_put": _index_put,
    "index_select": _index_select,
    "embedding": _embedding,
}

_PRODUCTS: dict[str, Callable[..., Any]] = {
    "mm": jnp.matmul,
    "bmm": jnp.matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
}

LOWERINGS: dict[str, Callable[..., Any]] = {**_ELEMENTWISE, **_REDUCTIONS, **_SHAPES, **_INDICES, **_PRODUCTS}
"""Operator name -> its lowering."""
