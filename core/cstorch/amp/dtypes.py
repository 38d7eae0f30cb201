"""The half precision of a program, and `autocast` to it."""

from __future__ import annotations

import warnings

import torch

from cstorch.backend import current_torch_device
from cstorch.legacy import warn_of_old

_HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "cbfloat16": torch.float16}

_chosen = "float16"
_is_mixed = False


def set_half_dtype(value: str | torch.dtype) -> torch.dtype:
    """Choose the half precision of the program.

    Args:
        value: "float16", "bfloat16", "cbfloat16", or a torch dtype of the first two.

    Returns:
        The dtype of torch. For "cbfloat16", which no processor here has, it is float16, after a warning.

    Raises:
        ValueError: it is something else.
    """
    global _chosen
    name = str(value).removeprefix("torch.")
    if name not in _HALVES:
        raise ValueError(f"the half dtype is {value!r}. Expected one of {', '.join(map(repr, _HALVES))}.")
    if name == "cbfloat16":
        warnings.warn(
            'there is no cbfloat16 here, so half precision is float16, whose range is smaller. "bfloat16" needs no '
            "loss scale.",
            stacklevel=2,
        )
    _chosen = name
    return _HALVES[name]


def get_half_dtype() -> torch.dtype:
    """The half precision of the program; float16 unless `set_half_dtype` chose another."""
    return _HALVES[_chosen]


def get_half_dtype_str() -> str:
    """Its name, as it was chosen."""
    return _chosen


def enable_mixed_precision(enable: bool = True) -> None:
    """Say whether the program computes in mixed precision. It changes `get_floating_point_dtype` alone."""
    global _is_mixed
    _is_mixed = bool(enable)


def mixed_precision() -> bool:
    """Whether `enable_mixed_precision` was said."""
    return _is_mixed


def get_floating_point_dtype() -> torch.dtype:
    """The half dtype in mixed precision, otherwise float32."""
    return get_half_dtype() if _is_mixed else torch.float32


def get_floating_point_dtype_str() -> str:
    """Its name."""
    return get_half_dtype_str() if _is_mixed else "float32"


def is_cbfloat16_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is cbfloat16: float16 while that was chosen."""
    return _chosen == "cbfloat16" and tensor.dtype == torch.float16


def autocast(dtype: torch.dtype | None = None) -> torch.autocast:
    """`torch.autocast` on the device of the backend.

    Args:
        dtype: Default `get_half_dtype()`.
    """
    return torch.autocast(current_torch_device().type, dtype=dtype or get_half_dtype())


def use_bfloat16(value: bool = True) -> None:
    """What `set_half_dtype` was in old releases; warns.

    Args:
        value: Whether the half precision is bfloat16; otherwise float16.
    """
    chosen = "bfloat16" if value else "float16"
    warn_of_old(f"amp.use_bfloat16({value})", f'Write cstorch.amp.set_half_dtype("{chosen}").')
    set_half_dtype(chosen)
