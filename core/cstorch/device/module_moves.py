"""Keeps parameters the same objects when a module leaves csx, and drops gradients that exist in programs only.

`module.to("csx")` swaps each parameter in place, so optimizers stay valid. PyTorch does not do the same on the
way back: it makes new parameters when a wrapper tensor becomes a plain one. This wraps `nn.Module._apply`,
through which all moves go; modules without csx parameters are not touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from cstorch.device.registration import CSX
from cstorch.device.tensor import CsxTensor, observer

_apply: Callable[..., nn.Module] = nn.Module._apply


_moving = False
_COMPUTES_WEIGHTS = (WeightNorm, SpectralNorm)
_OURS = frozenset(CsxTensor(torch.zeros(())).__dict__)

_swap_tensors: Callable[[torch.Tensor, torch.Tensor], None] = torch.utils.swap_tensors


def _apply_keeping_all(self: nn.Module, fn: Callable[..., Any], recurse: bool = True) -> nn.Module:
    """`_apply`; what a user hung on a parameter, hooks and attributes, stays on it in a swap."""
    global _moving
    _forget_computed_weights(self, fn)
    before, _moving = _moving, True
    try:
        return _apply_keeping_identity(self, fn, recurse)
    finally:
        _moving = before


def _forget_computed_weights(self: nn.Module, fn: Callable[..., Any]) -> None:
    """Weights that a hook computes before each forward pass hold on to the parameters, which then cannot be swapped."""
    for hook in self._forward_pre_hooks.values():
        name = hook.name if isinstance(hook, _COMPUTES_WEIGHTS) else ""
        if isinstance(value := self.__dict__.get(name), torch.Tensor) and not value.is_leaf:
            self.__dict__[name] = fn(value.detach())


def _apply_to_lazy(self: nn.Module, fn: Callable[..., Any], recurse: bool = True) -> nn.Module:
    """Tensors whose shape is not known yet hold nothing to move: they note that they shall be made on csx."""
    places: list[tuple[dict[str, Any], str, Any]] = [
        (d, n, t) for d in (self._parameters, self._buffers) for n, t in d.items() if t is not None and is_lazy(t)
    ]
    if not places or fn(torch.empty(0)).device.type != CSX.type:
        return _apply_keeping_all(self, fn, recurse)
    for holder, name, tensor in places:
        tensor._on_csx = True
        holder[name] = None
    try:
        return _apply_keeping_all(self, fn, recurse)
    finally:
        for holder, name, tensor in places:
            holder[name] = tensor


def _apply_keeping_identity(self: nn.Module, fn: Callable[..., Any], recurse: bool = True) -> nn.Module:
    ours = [p for p in self._parameters.values() if isinstance(p, CsxTensor)]
    if not ours:
        return _apply(self, fn, recurse)
    if recurse:
        for child in self.children():
            child._apply(fn)
    for parameter in ours:
        assert parameter is not None
        grad = parameter.grad
        if isinstance(grad, CsxTensor) and grad.is_handle:
            parameter.grad = None
    every = dict(self._parameters)
    for key, parameter in every.items():
        if not isinstance(parameter, CsxTensor):
            continue
        with torch.no_grad():
            made = fn(parameter)
        if parameter.is_handle and made.device.type == "cpu":
            every[key] = made  # of a copy that the step has made: the host's, after each run
        elif isinstance(made, CsxTensor):
            _change_in_place(parameter, made, fn)
        else:
            continue
        del self._parameters[key]
    try:
        _apply_the_rest(self, fn)
    finally:
        rest = dict(self._parameters)
        self._parameters.clear()
        self._parameters.update({key: rest.get(key, parameter) for key, parameter in every.items()})
    return self


def _change_in_place(parameter: CsxTensor, made: CsxTensor, fn: Callable[..., Any]) -> None:
    """Give a parameter that stays on csx what `fn` made of it, its dtype or memory format, and keep its identity."""
    with torch.no_grad():
        if made is not parameter:
            parameter.data = made
        grad = parameter.grad
        if grad is not None and (grad_made := fn(grad)) is not grad:
            grad.data = grad_made


def _apply_the_rest(self: nn.Module, fn: Callable[..., Any]) -> nn.Module:
    swap = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return _apply(self, fn, False)
    except RuntimeError as error:
        if "swap" not in str(error):
            raise
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swap)
    return _apply(self, fn, False)  # something holds the parameters' internals: new ones, as PyTorch does


def _swap_noticed(t1: torch.Tensor, t2: torch.Tensor) -> None:
    observer.host_changes += 1
    if not _moving:
        _swap_tensors(t1, t2)
        return
    hooks, late_hooks = t1._backward_hooks, t1._post_accumulate_grad_hooks
    attributes = {name: value for name, value in t1.__dict__.items() if name not in _OURS}
    _swap_tensors(t1, t2)
    t1.__dict__.update(attributes)
    if hooks:
        t1._backward_hooks = hooks
    if late_hooks:
        t1._post_accumulate_grad_hooks = late_hooks


def install() -> None:
    """Wrap `nn.Module._apply` and `torch.utils.swap_tensors`, once; the second so that programs notice a swap."""
    if nn.Module._apply is _apply:
        nn.Module._apply = _apply_to_lazy  # type: ignore[method-assign]
        torch.utils.swap_tensors = _swap_noticed
