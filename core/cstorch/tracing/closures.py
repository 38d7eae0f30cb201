"""Step closures: host functions that receive the values of a step, at the end of its iteration, in call order.

Called in a traced step, a closure becomes an effect of the program and repeats at every run. Called in the
body of an executor's loop it is queued for the end of that iteration. Called anywhere else it runs at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec

import torch

from cstorch.device import CsxTensor, to_host
from cstorch.errors import BackendError
from cstorch.tracing import nest
from cstorch.tracing.context import context

P = ParamSpec("P")


def value_of(leaf: Any) -> Any:
    """A tensor as a detached cpu tensor of its own; anything else as it is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if isinstance(leaf, CsxTensor):
        if leaf._cell is not None and leaf._cell.value is not None:
            return leaf._cell.value
        return to_host(leaf, "passing a tensor to a closure").detach().clone()
    return leaf.detach().clone() if leaf.device.type == "cpu" else leaf.detach().cpu()


def _call(kind: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    recording = context.recording
    if recording is not None and not context.in_closure:
        recording.add_effect(kind, function, args, kwargs)
        return
    iteration = context.iteration
    if iteration is None or context.in_closure:
        if kind == "checkpoint" and iteration is not None and not iteration.is_checkpoint:
            return
        context.run_closures([(function, nest.map_leaves(value_of, args), nest.map_leaves(value_of, kwargs))])
        return
    if not iteration.runs(kind):
        return  # its tensors are not fetched either: where nothing is executed they have no values
    iteration.queue(kind, function, nest.map_leaves(value_of, args), nest.map_leaves(value_of, kwargs))


def step_closure(closure: Callable[P, Any]) -> Callable[P, None]:
    """Decorator: calls of the function are queued and run at the end of the step (`cstorch.step_closure`).

    Tensors in the arguments, nested in lists, tuples, dicts or dataclasses, arrive as detached cpu tensors.
    A call returns None. In a traced step the call repeats at each step with that step's values while its
    other arguments keep the values of the trace. On CSX, closures run on steps whose activations are fetched
    (`DataExecutor(activation_steps=...)`). Outside an executor's loop the closure runs at once.

    Args:
        closure: The function to wrap. It may read tensors, print, log and change host state.

    Returns:
        The wrapped function.
    """

    @functools.wraps(closure)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        _call("closure", closure, args, kwargs)

    return wrapper


def checkpoint_closure(closure: Callable[P, Any]) -> Callable[P, None]:
    """Decorator: calls of the function run on checkpoint steps only (`cstorch.checkpoint_closure`).

    Call it at every iteration; it acts at the end of those that `DataExecutor(checkpoint_steps=...)` names.
    Outside an executor's loop it runs at once, since weights are at hand there.

    Args:
        closure: The function to wrap, usually one that calls `cstorch.save`.

    Returns:
        The wrapped function, which returns None.

    Raises:
        BackendError: at a call, when no backend exists.
    """

    @functools.wraps(closure)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        if context.backend is None:
            raise BackendError(
                f"checkpoint closure {getattr(closure, '__name__', closure)!r} was called with no backend. "
                'Create one first, for example cstorch.backend("CSX").'
            )
        _call("checkpoint", closure, args, kwargs)

    return wrapper
