"""Between numpy arrays and torch tensors (`cerebras.pytorch.from_numpy`, `cerebras.pytorch.to_numpy`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cstorch.device import to_host

_NARROW = {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}
"""Dtypes that numpy does not have; float32 holds all their values."""

_BITS = {1: (np.uint8, torch.uint8), 2: (np.int16, torch.int16)}


def from_numpy(array: Any) -> torch.Tensor:
    """A cpu tensor with the contents of a numpy array.

    They share their memory where torch can use it: not when the array is read-only, of another byte order, or has
    negative strides. Arrays of the dtypes `bfloat16` and `float8_...` of the package ml_dtypes become tensors of these.

    Args:
        array: A numpy array or scalar.

    Returns:
        A tensor on the cpu of the same shape, and of the dtype of that name.

    Raises:
        TypeError: it is neither, or of a dtype that torch does not have, such as strings and objects.
    """
    if not isinstance(array, (np.ndarray, np.generic)):
        raise TypeError(
            f"from_numpy got a {type(array).__name__}, expected a numpy array. Use torch.as_tensor for other data."
        )
    array = np.asarray(array)
    narrow = getattr(torch, array.dtype.name, None)
    if narrow in _NARROW:
        bits, like = _BITS[array.dtype.itemsize]
        return from_numpy(array.view(bits)).view(like).view(narrow)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def to_numpy(tensor: torch.Tensor) -> Any:
    """A numpy array with the contents of a tensor.

    They share their memory where numpy can use it. Tensors of bfloat16 and of the float8 dtypes, which numpy does not
    have, become float32 arrays of the same values.

    Args:
        tensor: Any tensor whose contents can be read.

    Returns:
        An array of the same shape.

    Raises:
        TypeError: it is no tensor.
        ValueReadError: it stands for a value of a traced step.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"to_numpy got a {type(tensor).__name__}, expected a torch tensor.")
    host = to_host(tensor.detach(), "to_numpy()").cpu().resolve_conj().resolve_neg()
    if host.layout is not torch.strided:
        host = host.to_dense()
    return (host.float() if host.dtype in _NARROW else host).numpy()
