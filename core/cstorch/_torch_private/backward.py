"""PyTorch's private surface for backward: the call of the autograd engine and the function modes (torch 2.13)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

__all__ = ["around_engine", "first_post_accumulate_grad_hook", "is_on"]


def is_on(mode: TorchFunctionMode) -> bool:
    """Whether `mode` sees the calls that are made now."""
    return any(known is mode for known in _get_current_function_mode_stack())


@contextlib.contextmanager
def around_engine(enter: Callable[[Any], contextlib.AbstractContextManager[Any]]) -> Iterator[None]:
    """Within, every run of the autograd engine happens in the context that `enter` makes of its first argument."""
    autograd: Any = torch.autograd
    run = autograd._engine_run_backward

    def run_in_context(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        with enter(outputs):
            return run(outputs, *args, **kwargs)

    autograd._engine_run_backward = run_in_context
    try:
        yield
    finally:
        autograd._engine_run_backward = run


def first_post_accumulate_grad_hook(tensor: torch.Tensor, hook: Callable[[Any], None]) -> Any:
    """Register `hook` like `Tensor.register_post_accumulate_grad_hook`, to be called before those that are there."""
    with torch._C.DisableTorchFunction():
        handle = tensor.register_post_accumulate_grad_hook(hook)
    hooks: Any = tensor._post_accumulate_grad_hooks
    hooks.move_to_end(handle.id, last=False)
    return handle
