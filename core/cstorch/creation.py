"""Tensors of a known shape and value on the current device (`cerebras.pytorch.full` and its kin)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cstorch.backend import current_torch_device


def full(shape: Sequence[int], value: float, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor filled with `value` (`cerebras.pytorch.full`).

    Args:
        shape: The shape.
        value: The value.
        dtype: The dtype; that of `value` by default.
    """
    return torch.full(tuple(shape), value, dtype=dtype, device=current_torch_device())


def full_like(other: torch.Tensor, value: float, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor like `other`, filled with `value` (`cerebras.pytorch.full_like`).

    Args:
        other: The tensor to take shape, dtype and device from.
        value: The value.
        dtype: Another dtype.
    """
    return torch.full_like(other, value, dtype=dtype)


def ones(shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of ones (`cerebras.pytorch.ones`); torch's default dtype unless `dtype` is given."""
    return full(shape, 1, dtype or torch.get_default_dtype())


def ones_like(other: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of ones like `other` (`cerebras.pytorch.ones_like`)."""
    return full_like(other, 1, dtype)


def zeros(shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of zeros (`cerebras.pytorch.zeros`); torch's default dtype unless `dtype` is given."""
    return full(shape, 0, dtype or torch.get_default_dtype())


def zeros_like(other: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of zeros like `other` (`cerebras.pytorch.zeros_like`)."""
    return full_like(other, 0, dtype)
