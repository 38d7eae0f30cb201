"""Lets the parameters of `nn.LazyLinear` and its kin, whose shape is not known yet, be made on csx.

PyTorch makes them by relabelling a tensor, which a wrapper does not allow. So they stay on the cpu, where they hold
nothing, and become csx parameters when they are given a shape.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from cstorch._torch_private.device import UninitializedTensorMixin
from cstorch.device.registration import CSX

_materialize = UninitializedTensorMixin.materialize


def _keep_on_cpu(kind: Any) -> None:
    make = kind.__new__

    def made(
        cls: Any, requires_grad: bool = kind is UninitializedParameter, device: Any = None, *args: Any, **kw: Any
    ) -> Any:
        wanted = torch.get_default_device() if device is None else torch.device(device)
        if wanted.type != CSX.type:
            return make(cls, requires_grad, device, *args, **kw)
        tensor = make(cls, requires_grad, "cpu", *args, **kw)
        tensor._on_csx = True
        return tensor

    kind.__new__ = staticmethod(made)


def _materialize_on_csx(self: Any, shape: Any, device: Any = None, dtype: torch.dtype | None = None) -> None:
    if not self.__dict__.get("_on_csx") if device is None else torch.device(device).type != CSX.type:
        _materialize(self, shape, device, dtype)
        return
    made: torch.Tensor = torch.empty(shape, dtype=dtype or self.data.dtype, device=CSX)
    if isinstance(self, UninitializedParameter):
        made = nn.Parameter(made, self.requires_grad)
    _materialize(self, (), torch.device("cpu"), dtype)  # an ordinary tensor, which can be exchanged
    torch.utils.swap_tensors(self, made)


def install() -> None:
    """Take the place of PyTorch's constructors and of `materialize`, once."""
    if UninitializedTensorMixin.materialize is _materialize:
        UninitializedTensorMixin.materialize = _materialize_on_csx
        for kind in (UninitializedParameter, UninitializedBuffer):
            _keep_on_cpu(kind)
