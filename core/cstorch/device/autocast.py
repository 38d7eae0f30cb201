"""`torch.autocast` for csx tensors, with the casts that PyTorch makes on the cpu.

csx tensors follow `torch.autocast("csx")`; where there is none around, they follow `torch.autocast("cpu")`, since a
program written for the cpu is to mean the same here. The casts are those of the cpu, operator for operator: which
operators have one is asked of PyTorch, and all but the few below are computed in float32.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from torch.utils import _pytree as pytree

from cstorch._torch_private.autocast import cpu_operators, excluded, replace_cast
from cstorch.device.registration import NAME

_LOWER = frozenset(
    {
        "_addmm_activation", "_convolution.deprecated", "_native_multi_head_attention", "addbmm", "addmm", "baddbmm",
        "bmm", "conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d", "conv3d.padding", "conv_tbc",
        "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "linalg_vecdot", "linear", "matmul",
        "mkldnn_rnn_layer", "mm", "prelu", "scaled_dot_product_attention",
    }
)  # fmt: skip
"""Operators computed in the dtype of autocast."""

_WIDEST = frozenset({"cat", "index_copy", "stack"})
"""Operators computed in the widest dtype among their arguments."""

_casts: dict[tuple[int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}
"""Weights with what they were cast to, by id and dtype. They are cast once, so that the gradients of all uses are added
in the lower precision, as PyTorch does; emptied when the outermost autocast ends."""


def _is_cast(tensor: Any) -> bool:
    return tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.device.type in (NAME, "cpu")


def _to(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.dtype == dtype or not _is_cast(tensor):
        return tensor
    kept = (
        dtype == torch.get_autocast_dtype(NAME)
        and tensor.dtype == torch.float32
        and tensor.requires_grad
        and tensor.is_leaf
        and not tensor._is_view()
        and torch.is_autocast_cache_enabled()
        and torch.is_grad_enabled()
    )
    if not kept:
        return tensor.to(dtype)
    key = id(tensor), dtype
    if key not in _casts:
        _casts[key] = tensor, tensor.to(dtype)
    return _casts[key][1]


def _widest(tensors: list[Any]) -> torch.dtype:
    seen = [t.dtype for t in tensors if isinstance(t, torch.Tensor) and _is_cast(t)]
    return functools.reduce(torch.promote_types, seen, torch.get_autocast_dtype(NAME))


def _kernel(name: str) -> Any:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with excluded():
            if name in _LOWER:
                dtype = torch.get_autocast_dtype(NAME)
            else:
                dtype = _widest(pytree.tree_leaves((args, kwargs))) if name in _WIDEST else torch.float32
            args, kwargs = pytree.tree_map_only(torch.Tensor, lambda t: _to(t, dtype), (args, kwargs))
            return operator(*args, **kwargs)

    return kernel


def lowered(*tensors: torch.Tensor | None) -> tuple[Any, ...]:
    """`tensors` in the dtype of autocast where it is on for csx, for a caller that chooses the operator itself."""
    if not torch.is_autocast_enabled(NAME):
        return tensors
    dtype = torch.get_autocast_dtype(NAME)
    return tuple(_to(t, dtype) if isinstance(t, torch.Tensor) else t for t in tensors)


def forget_casts() -> None:
    """Empty the cache: weights have changed, or what they were cast to belongs to a trace."""
    _casts.clear()


class _Here(threading.local):
    """This thread's state beside PyTorch's.

    Attributes:
        explicit: Whether a `torch.autocast("csx")` is around, so that csx does not follow the cpu.
    """

    def __init__(self) -> None:
        self.explicit = False
        torch.set_autocast_dtype(NAME, torch.get_autocast_dtype("cpu"))


_here = _Here()


def _follow_cpu() -> None:
    """Take over the contexts and setters of PyTorch: what is set for the cpu is set for csx too."""
    kind: Any = torch.autocast
    init, enter, leave = kind.__init__, kind.__enter__, kind.__exit__

    @functools.wraps(init)
    def init_too(self: Any, *args: Any, **kwargs: Any) -> None:
        self._csx_before = _here.explicit  # the first look in a thread sets the dtype that csx has there
        init(self, *args, **kwargs)

    def enter_too(self: Any) -> Any:
        self._csx_before = _here.explicit, torch.is_autocast_enabled(NAME), torch.get_autocast_dtype(NAME)
        _here.explicit = _here.explicit or self.device == NAME
        return enter(self)

    def leave_too(self: Any, *error: Any) -> Any:
        done = leave(self, *error)
        _here.explicit, enabled, dtype = self._csx_before
        torch.set_autocast_enabled(NAME, enabled)
        torch.set_autocast_dtype(NAME, dtype)
        return done

    def both(setter: Any) -> Any:
        @functools.wraps(setter)
        def set_both(*args: Any) -> None:
            setter(*args)
            if args[0] == "cpu" and not _here.explicit:
                setter(NAME, *args[1:])

        return set_both

    def cast_too(cast: Any) -> Any:
        def cast_csx(value: Any, device_type: str, dtype: torch.dtype) -> Any:
            ours = device_type == "cpu" and isinstance(value, torch.Tensor) and value.device.type == NAME
            return cast(value, NAME if ours else device_type, dtype)

        return cast_csx

    clear = torch.clear_autocast_cache

    @functools.wraps(clear)
    def clear_both() -> None:
        clear()
        forget_casts()

    kind.__init__, kind.__enter__, kind.__exit__ = init_too, enter_too, leave_too
    torch.set_autocast_enabled = both(torch.set_autocast_enabled)
    torch.set_autocast_dtype = both(torch.set_autocast_dtype)
    torch.clear_autocast_cache = clear_both
    replace_cast(cast_too)


_library = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
_others = torch.library.Library("_", "IMPL")


def install() -> None:
    """Register the kernels and take over PyTorch's contexts, once."""
    if getattr(torch.autocast.__enter__, "__name__", "") == "enter_too":
        return
    _others.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for name in cpu_operators():
        _library.impl(name, _kernel(name))
    _follow_cpu()
