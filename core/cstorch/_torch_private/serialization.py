"""PyTorch's private surface for the checkpoints that `torch.load` reads (torch 2.13; the functions since 2.1)."""

from __future__ import annotations

import functools
from typing import Any

import torch

from cstorch._torch_private.device import rebuild_parameter

__all__ = [
    "is_typed_storage",
    "rebuild_parameter",
    "rebuild_tensor",
    "rebuild_tensor_of_dtype",
    "storage_class",
    "storage_id",
    "typed_length",
    "untyped",
]

rebuild_tensor: Any = torch._utils._rebuild_tensor_v2
"""What data.pkl calls for a tensor: typed storage, offset, size, stride, requires_grad and hooks become a tensor."""

rebuild_tensor_of_dtype: Any = torch._utils._rebuild_tensor_v3
"""The same for dtypes without a storage class, and for several dtypes over one storage: with the dtype at the end."""

_CLASSES: dict[torch.dtype, str] = torch.storage._dtype_to_storage_type_map()


@functools.cache
def storage_class(dtype: torch.dtype) -> Any:
    """The class that data.pkl names for storages of `dtype`; None for dtypes that came after such classes."""
    name = _CLASSES.get(dtype)
    return None if name is None else getattr(torch, name)


def storage_id(tensor: torch.Tensor) -> int:
    """What tensors that share memory have in common, while one of them lives."""
    return int(tensor.untyped_storage()._cdata)


def is_typed_storage(value: object) -> bool:
    """Whether `value` is a storage of the kind that remembers a dtype."""
    return isinstance(value, torch.storage.TypedStorage)


def untyped(storage: Any) -> torch.UntypedStorage:
    """The bytes of a storage of the kind that remembers a dtype."""
    found: torch.UntypedStorage = storage._untyped_storage
    return found


def typed_length(storage: Any) -> int:
    """How many elements it has."""
    return int(storage._size())
