"""Kernels of the csx device: what operators do that no csx tensor brings to `CsxTensor`.

Factories have no tensor argument at all. The fused cells of recurrent networks, which PyTorch calls on every device
but the cpu, are said in ordinary operations, so that they run, differentiate and trace like these.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from cstorch.device import lazy
from cstorch.device.recurrent_cells import gru_cell, lstm_cell
from cstorch.device.tensor import CsxTensor, to_host

aten = torch.ops.aten


_HOST = torch.device("cpu")


def _on_host(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kwargs = {key: value for key, value in kwargs.items() if key not in ("layout", "pin_memory")}
    kwargs["device"] = _HOST
    out = op(*args, **kwargs)
    if type(out) is torch.Tensor:
        return CsxTensor(out)
    return torch.utils._pytree.tree_map_only(torch.Tensor, CsxTensor, out)


def _empty(op: torch._ops.OpOverload) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> CsxTensor:
        if lazy.is_recording():
            plain = {key: value for key, value in kwargs.items() if key not in ("layout", "pin_memory")}
            return CsxTensor.of_pending(lazy.empty(op, args, plain))
        return _on_host(op, args, kwargs)  # type: ignore[no-any-return]

    return kernel


def _with(op: Any, *args: Any, **kwargs: Any) -> Any:
    return _on_host(op, args, kwargs)


def _other(op: Any, *args: Any, **kwargs: Any) -> Any:
    if "device" not in kwargs:
        raise NotImplementedError(f"{op} has no kernel for the csx device.")
    return _on_host(op, args, kwargs)


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    to_host(target).copy_(to_host(source))
    return target


_factories = torch.library.Library("aten", "IMPL", "PrivateUse1")
_factories.impl("empty.memory_format", _empty(aten.empty.memory_format))
_factories.impl("empty_strided", _empty(aten.empty_strided.default))
_factories.impl("_copy_from", _copy_from)
for _overload in ("default", "periodic", "beta"):  # the common kernel knows no device but PyTorch's own
    _operator = getattr(aten.kaiser_window, _overload)
    _factories.impl(_operator, functools.partial(_with, _operator))
_cells = torch.library.Library("aten", "IMPL", "AutogradPrivateUse1")
_cells.impl("_thnn_fused_lstm_cell", lstm_cell)
_cells.impl("_thnn_fused_gru_cell", gru_cell)
_rest = torch.library.Library("_", "IMPL")
_rest.fallback(_other, "PrivateUse1")
