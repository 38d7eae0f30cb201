"""Lowerings of convolution, pooling, normalisation and attention, with their backward operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = Any


def _convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    if x.ndim != weight.ndim:
        raise NotImplementedError  # no batch
    n = x.ndim - 2
    stride, padding, dilation = (list(v) if len(v) == n else list(v) * n for v in (stride, padding, dilation))
    spread = [1] * n
    around = [(p, p) for p in padding]
    if transposed:
        sizes = weight.shape[2:]
        weight = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:]).swapaxes(1, 2)
        weight = jnp.flip(weight.reshape(-1, weight.shape[2], *sizes), tuple(range(2, n + 2)))
        full = [d * (k - 1) - p for d, k, p in zip(dilation, sizes, padding, strict=True)]
        around = [(f, f + o) for f, o in zip(full, output_padding, strict=True)]
        stride, spread = spread, stride
    found = lax.conv_general_dilated(
        x, weight, stride, around, spread, dilation, feature_group_count=groups, precision=lax.Precision.HIGHEST
    )
    return found if bias is None else found + bias.reshape(-1, *[1] * n)


def _convolution_backward(
    grad: Array, x: Array, weight: Array, bias_sizes: Any, *rest: Any
) -> tuple[Array | None, Array | None, Array | None]:
    *settings, wanted = rest
    _, pull = jax.vjp(lambda x, weight: _convolution(x, weight, None, *settings), x, weight)
    of_x, of_weight = pull(grad)
    of_bias = grad.sum((0, *range(2, grad.ndim)))
    return tuple(g if is_wanted else None for g, is_wanted in zip((of_x, of_weight, of_bias), wanted, strict=True))  # type: ignore[return-value]


def _windows(
    shape: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil: bool,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], list[int]]:
    """For each output of a pooling its window: flat places in the input, which of them exist; the output's shape."""
    places, exist, sizes = [], [], []
    for n, k, s, p, d in zip(shape, kernel, stride, padding, dilation, strict=True):
        reach = n + 2 * p - d * (k - 1) - 1
        size = (-(-reach // s) if ceil else reach // s) + 1
        if ceil and (size - 1) * s >= n + p:  # a window must begin inside the input or its left padding
            size -= 1
        at = np.arange(size)[:, None] * s - p + np.arange(k)[None, :] * d
        sizes.append(size)
        exist.append((at >= 0) & (at < n))
        places.append(at.clip(0, n - 1))
    flat, there = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
    for n, at, is_there in zip(shape, places, exist, strict=True):
        flat = (flat[:, None, :, None] * n + at[None, :, None, :]).reshape(flat.shape[0] * len(at), -1)
        there = (there[:, None, :, None] & is_there[None, :, None, :]).reshape(flat.shape)
    return flat, there, sizes


def _max_pool(n: int) -> Callable[..., Any]:
    def pool(
        x: Array,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Any:
        size, step, around, spread = [
            list(v) * (n if len(v) == 1 else 1) for v in (kernel, stride or kernel, padding, dilation)
        ]
        flat, there, sizes = _windows(x.shape[-n:], size, step, around, spread, ceil_mode)
        planes = x.reshape(*x.shape[:-n], -1)
        least = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
        windows = jnp.where(there, planes[..., flat], jnp.asarray(least, x.dtype))
        best = jnp.argmax(windows, -1)
        values = jnp.take_along_axis(windows, best[..., None], -1)[..., 0]
        places = jnp.asarray(flat)[jnp.arange(len(flat)), best]
        shape = (*x.shape[:-n], *sizes)
        return values.reshape(shape), places.reshape(shape)

    return pool


def _max_pool_backward(n: int) -> Callable[..., Any]:
    def backward(grad: Array, x: Array, *settings: Any) -> Array:
        places = settings[-1]
        planes = jnp.zeros((int(np.prod(x.shape[:-n])), int(np.prod(x.shape[-n:]))), grad.dtype)
        rows = np.arange(planes.shape[0])[:, None]
        shape = (planes.shape[0], -1)
        return planes.at[rows, places.reshape(shape)].add(grad.reshape(shape)).reshape(x.shape)

    return backward


def _layer_norm(x: Array, shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float) -> Any:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    wide = x.astype(jnp.float32) if x.dtype in (jnp.bfloat16, jnp.float16) else x
    mean = wide.mean(axes, keepdims=True)
    scale = lax.rsqrt(wide.var(axes, keepdims=True) + eps)
    found = (wide - mean) * scale
    found = found if weight is None else found * weight
    return found if bias is None else found + bias, mean, scale


def _group_norm(
    x: Array, weight: Array | None, bias: Array | None, n: int, channels: int, size: int, groups: int, eps: float
) -> Any:
    found, mean, scale = _layer_norm(x.reshape(n, groups, -1), (channels * size // groups,), None, None, eps)
    found, shape = found.reshape(x.shape), (-1, *[1] * (x.ndim - 2))
    found = found if weight is None else found * weight.reshape(shape)
    return found if bias is None else found + bias.reshape(shape), mean[..., 0], scale[..., 0]


def _batch_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array | None,
    var: Array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    axes, shape = (0, *range(2, x.ndim)), (-1, *[1] * (x.ndim - 2))
    if training:
        if x.dtype in (jnp.bfloat16, jnp.float16):
            raise NotImplementedError
        here, spread = x.mean(axes), x.var(axes)
        if mean is not None and var is not None:
            count = x.size // x.shape[1]
            mean = mean + momentum * (here - mean)
            var = var + momentum * (spread * count / (count - 1) - var)
        scale = lax.rsqrt(spread + eps)
        saved = here, scale
    else:
        assert mean is not None
        assert var is not None
        here, scale = mean, lax.rsqrt(var + eps)
        saved = jnp.zeros((0,)), jnp.zeros((0,))
    found = (x - here.reshape(shape)) * scale.reshape(shape)
    found = found if weight is None else found * weight.reshape(shape)
    found = found if bias is None else found + bias.reshape(shape)
    return found, *saved, mean, var


def _batch_norm_without_statistics(
    x: Array, weight: Array | None, bias: Array | None, training: bool, momentum: float, eps: float
) -> Any:
    return _batch_norm(x, weight, bias, None, None, True, momentum, eps)[:3]


def _attend(query: Array, key: Array, value: Array, causal: bool, mask: Array | None, scale: float | None) -> Any:
    scores = (query @ key.swapaxes(-1, -2)) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores + mask if mask.dtype != jnp.bool_ else jnp.where(mask, scores, -jnp.inf)
    if causal:
        allowed = np.tri(scores.shape[-2], scores.shape[-1], dtype=bool)
        scores = jnp.where(allowed, scores, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1) @ value, jax.nn.logsumexp(scores, axis=-1)


def _attention(
    query: Array,
    key: Array,
    value: Array,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> Any:
    if dropout_p:
        raise NotImplementedError
    return _attend(query, key, value, is_causal, attn_mask, scale)


def _attention_backward(
    grad: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    logsumexp: Array,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> Any:
    if dropout_p:
        raise NotImplementedError
    return jax.vjp(lambda q, k, v: _attend(q, k, v, is_causal, attn_mask, scale)[0], query, key, value)[1](grad)


LOWERINGS: dict[str, Callable[..., Any]] = {
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "max_pool2d_with_indices": _max_pool(2),
    "max_pool2d_with_indices_backward": _max_pool_backward(2),
    "max_pool3d_with_indices": _max_pool(3),
    "max_pool3d_with_indices_backward": _max_pool_backward(3),
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
    "_native_batch_norm_legit_functional": _batch_norm,
    "_native_batch_norm_legit": _batch_norm_without_statistics,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
"""Operator name -> its lowering."""
