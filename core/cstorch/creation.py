"""Tensors of a known shape and value on the current device, which take no memory until they are written.

`cerebras.pytorch.full` and its kin. On csx they are pending (`device.lazy`), elsewhere constant (`device.constant`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cstorch.backend import current_torch_device
from cstorch.device import CSX, lazy
from cstorch.device.constant import constant


def _filled(shape: Sequence[int], value: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return constant(tuple(shape), value, dtype)
    if device.type != CSX.type:
        return torch.full(tuple(shape), value, dtype=dtype, device=device)
    with lazy.recording():
        return torch.full(tuple(shape), value, dtype=dtype, device=device)


def full(shape: Sequence[int], value: float, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor filled with `value`, lazily: it takes no memory until it is written (`cerebras.pytorch.full`).

    Args:
        shape: The shape, a sequence of sizes.
        value: The value.
        dtype: The dtype; that of `value` by default, as for `torch.full`.

    Returns:
        A tensor on `cstorch.current_torch_device()`.
    """
    return _filled(shape, value, dtype or torch.full((), value).dtype, current_torch_device())


def full_like(other: torch.Tensor, value: float, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor like `other`, filled with `value`, lazily (`cerebras.pytorch.full_like`).

    Args:
        other: The tensor to take shape, dtype and device from.
        value: The value.
        dtype: Another dtype; that of `other` by default.

    Returns:
        A tensor of the shape of `other` on its device.
    """
    return _filled(other.shape, value, dtype or other.dtype, other.device)


def ones(shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of ones, lazily: it takes no memory until it is written (`cerebras.pytorch.ones`).

    Args:
        shape: The shape, a sequence of sizes.
        dtype: The dtype; torch's default dtype by default.

    Returns:
        A tensor on `cstorch.current_torch_device()`.
    """
    return full(shape, 1, dtype or torch.get_default_dtype())


def ones_like(other: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of ones like `other`, lazily (`cerebras.pytorch.ones_like`).

    Args:
        other: The tensor to take shape, dtype and device from.
        dtype: Another dtype; that of `other` by default.

    Returns:
        A tensor of the shape of `other` on its device.
    """
    return full_like(other, 1, dtype)


def zeros(shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of zeros, lazily: it takes no memory until it is written (`cerebras.pytorch.zeros`).

    Args:
        shape: The shape, a sequence of sizes.
        dtype: The dtype; torch's default dtype by default.

    Returns:
        A tensor on `cstorch.current_torch_device()`.
    """
    return full(shape, 0, dtype or torch.get_default_dtype())


def zeros_like(other: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of zeros like `other`, lazily (`cerebras.pytorch.zeros_like`).

    Args:
        other: The tensor to take shape, dtype and device from.
        dtype: Another dtype; that of `other` by default.

    Returns:
        A tensor of the shape of `other` on its device.
    """
    return full_like(other, 0, dtype)


def make_constant(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the host that stays as it is, on the device of the backend (`cerebras.pytorch.make_constant`).

    In a traced step its contents become part of the program: masks and tables that the step's Python computes.

    Args:
        tensor: On the cpu, or on the device already.

    Returns:
        A tensor of the same shape, dtype and contents, without a gradient.
    """
    return tensor.detach().to(current_torch_device())
