"""PyTorch's private surface for a device backend in Python and for wrapper subclasses (torch 2.13)."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import parameter
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

__all__ = [
    "BackendModule",
    "UninitializedTensorMixin",
    "disabled_torch_function",
    "make_wrapper",
    "rebuild_on_device",
    "rebuild_parameter",
    "register_backend",
    "return_and_correct_aliasing",
    "set_bits",
]

disabled_torch_function: Any = torch._C._disabled_torch_function_impl
"""Assigned to `__torch_function__`: the subclass takes no part in the function protocol."""

rebuild_on_device: Any = torch._utils._rebuild_device_tensor_from_cpu_tensor
"""What PyTorch pickles for devices without storage: cpu tensor, dtype, device and requires_grad become a tensor."""

rebuild_parameter: Any = torch._utils._rebuild_parameter
"""What PyTorch pickles for parameters: data, requires_grad and hooks become a parameter."""

UninitializedTensorMixin: Any = parameter.UninitializedTensorMixin  # type: ignore[attr-defined]
"""Base of the parameters and buffers that have no shape yet."""

BackendModule: Any = _DummyBackendModule
"""Base of the module that becomes `torch.<device name>`."""


def register_backend(name: str, module: object) -> None:
    """Claim the PrivateUse1 device under `name`; `module` becomes `torch.<name>`."""
    _setup_privateuseone_for_python_backend(name, backend_module=module)


def make_wrapper(cls: type, like: torch.Tensor, device: torch.device) -> Any:
    """Make a tensor of class `cls` on `device` with the metadata of `like` and no storage of its own."""
    return torch.Tensor._make_wrapper_subclass(
        cls,
        like.shape,
        strides=like.stride(),
        storage_offset=like.storage_offset(),
        dtype=like.dtype,
        device=device,
    )


def set_bits(tensor: torch.Tensor, conj: bool, neg: bool) -> torch.Tensor:
    """`tensor`, now conjugated or negated when it is read."""
    if conj:
        torch._C._set_conj(tensor, True)
    if neg:
        torch._C._set_neg(tensor, True)
    return tensor
