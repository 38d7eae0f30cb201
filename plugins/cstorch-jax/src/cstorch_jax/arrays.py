"""PyTorch tensors as arrays and back; memory is shared where nothing is said of a copy."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from cstorch.errors import BackendError

DTYPES: dict[torch.dtype, Any] = {
    torch.bool: jnp.bool_,
    torch.uint8: jnp.uint8,
    torch.int8: jnp.int8,
    torch.int16: jnp.int16,
    torch.int32: jnp.int32,
    torch.int64: jnp.int64,
    torch.bfloat16: jnp.bfloat16,
    torch.float16: jnp.float16,
    torch.float32: jnp.float32,
    torch.float64: jnp.float64,
    torch.complex64: jnp.complex64,
    torch.complex128: jnp.complex128,
}
"""The dtypes that both sides have."""


def dtype_of(dtype: torch.dtype) -> Any:
    """JAX's name for a dtype.

    Raises:
        BackendError: it has none.
    """
    if dtype not in DTYPES:
        raise BackendError(
            f"the step holds a tensor of {dtype}, which the jax backend does not have. Use another dtype."
        )
    return DTYPES[dtype]


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A view of a cpu tensor's memory."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype is torch.bfloat16:  # NumPy knows it through JAX only
        return tensor.view(torch.int16).numpy().view(jnp.bfloat16)
    return tensor.numpy()


def to_torch(array: Any) -> torch.Tensor:
    """A tensor with a copy of an array's contents."""
    copied = np.array(array)
    if copied.dtype == jnp.bfloat16:
        return torch.from_numpy(copied.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(copied)


def overwrite(tensor: torch.Tensor, array: Any) -> None:
    """Give a tensor the contents of an array, in place."""
    np.copyto(to_numpy(tensor), np.asarray(array))
