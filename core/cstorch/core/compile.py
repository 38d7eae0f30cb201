"""Hooks before and after the Python of every traced step (`cerebras.pytorch.core.compile`)."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.hooks import RemovableHandle

Hook = Callable[[], Any]

_before: OrderedDict[int, Hook] = OrderedDict()
_after: OrderedDict[int, Hook] = OrderedDict()


def _register(table: OrderedDict[int, Hook], hook: Hook) -> RemovableHandle:
    if not callable(hook):
        raise TypeError(f"a hook is a {type(hook).__name__}, expected a function without arguments.")
    handle = RemovableHandle(table)
    table[handle.id] = hook
    return handle


def register_trace_fn_pre_hook(hook: Hook) -> RemovableHandle:
    """Call `hook()` each time before the Python of a traced step runs.

    On CSX that is when the step is traced, on CPU and GPU at every call. What the hook does is part of the step: it
    may change nothing that the step only reads once, and a step closure that it calls repeats at every run.

    Args:
        hook: A function without arguments.

    Returns:
        A handle; its `remove()` takes the hook away.

    Raises:
        TypeError: `hook` is not callable.
    """
    return _register(_before, hook)


def register_trace_fn_post_hook(hook: Hook) -> RemovableHandle:
    """Call `hook()` each time after the Python of a traced step has run; see `register_trace_fn_pre_hook`.

    It is called, too, when the step raises, so that it can undo what a hook before it has done; not when a hook before
    it raises. An error of its own goes on with the step's as its context.

    Args:
        hook: A function without arguments.

    Returns:
        A handle; its `remove()` takes the hook away.

    Raises:
        TypeError: `hook` is not callable.
    """
    return _register(_after, hook)


@contextlib.contextmanager
def hooks_called() -> Iterator[None]:
    """Within, the Python of a traced step runs."""
    for hook in list(_before.values()):
        hook()
    try:
        yield
    finally:
        for hook in list(_after.values()):
            hook()
