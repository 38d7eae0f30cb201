"""Values that a traced step asks the host to compute after its program has run, from what the program computes.

`host_call(metric, predictions)` in a step calls the metric after each run, in the order of the step closures, and gives
a HostValue at once. What the step does with that (arithmetic, logging, another call) is done on the host as well, then;
it can never go back into the program.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from cstorch._torch_private.device import make_wrapper
from cstorch._torch_private.tracing import outside_modes
from cstorch.device import CsxTensor
from cstorch.device.tensor import refuse_read
from cstorch.errors import TraceError
from cstorch.tracing import nest
from cstorch.tracing.context import context
from cstorch.tracing.scalars import plain_number
from cstorch.where import user_line

_SAME = {"detach", "clone", "contiguous", "cpu"}
_READS = {"item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__repr__", "__format__"}
_CHANGES = {"backward", "__set__", "__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"}
_ASKS = {"numel", "size", "dim", "__len__", "is_floating_point", "is_complex", "stride", "ndimension"}


class HostValue(torch.Tensor):
    """Stands for a tensor that the host computes after each run of the program.

    Attributes:
        value: That of the latest run.
    """

    value: Any

    @staticmethod
    def __new__(cls: type[HostValue], like: torch.Tensor) -> HostValue:
        """Stand for a value that looks like `like`."""
        made: HostValue = make_wrapper(cls, like, torch.device("cpu"))
        made.value = like
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _READS:
            raise refuse_read("reading what the host computes after the step")
        if name == "__get__" or name in _ASKS:
            return super().__torch_function__(func, types, args, kwargs)
        if name in _SAME or (name == "squeeze" and args[0].dim() == 0):
            return args[0]
        if name in _CHANGES or (name.endswith("_") and not name.endswith("__")):
            raise TraceError(
                f"{name}() at {user_line()} would take a value into the step that the host computes after it, such as "
                "what a metric returns, or a copy made with .cpu(). Log or return the value; for a loss, use the "
                "functional form of the metric, which is traced, and no copy."
            )
        return host_call(func, *args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise refuse_read(f"running {func} on what the host computes after the step")


def host_call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `function` after each run of the step that is being traced, with the values of that step.

    Args:
        function: Host work, given its tensors as detached cpu tensors.
        args: Its arguments.
        kwargs: Its keyword arguments.

    Returns:
        What the function returns, with a HostValue for each tensor and number. To know its structure, the function, or
        its attribute `sample`, is called with zeros once; a result of another structure is refused when the step runs.
    """
    assert context.recording is not None
    sample = _sample(getattr(function, "sample", function), args, kwargs)
    made = nest.map_leaves(_stand_in, sample)

    def call(*args: Any, **kwargs: Any) -> None:
        result = function(*args, **kwargs)
        stand_ins, values = nest.leaves(made), nest.leaves(result)
        if len(stand_ins) != len(values):
            raise TraceError(
                f"{getattr(function, '__name__', function)!r} returned {len(values)} values on the host, and when the "
                f"step was traced it seemed to return {len(stand_ins)}. Call it in a function decorated with "
                "cstorch.step_closure."
            )
        for stand_in, value in zip(stand_ins, values, strict=True):
            if isinstance(stand_in, HostValue):
                stand_in.value = value

    context.recording.add_effect("closure", call, args, kwargs)
    return made


def with_host_values(function: Callable[..., Any], args: Any, kwargs: Any) -> Callable[..., Any]:
    """`function`, given the values of HostValues among its arguments when it is called; itself where there are none."""
    if not any(isinstance(leaf, HostValue) for leaf in nest.leaves((args, kwargs))):
        return function

    @functools.wraps(function)
    def filled(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = nest.map_leaves(_value_of, (args, kwargs))
        return function(*args, **kwargs)

    return filled


def _value_of(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, HostValue) else leaf


def _stand_in(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return HostValue(leaf)
    return HostValue(torch.tensor(leaf)) if type(leaf) in (int, float) else leaf


def _sample(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What `function` returns for arguments of the right shapes; one number where zeros do not suit it."""

    def zeros(leaf: Any) -> Any:
        if isinstance(leaf, (CsxTensor, HostValue)):
            return torch.zeros(leaf.shape, dtype=leaf.dtype)
        return plain_number(leaf)

    with (
        outside_modes(),
        torch._C.DisableTorchFunction(),
        torch.random.fork_rng([]),
        warnings.catch_warnings(),
        contextlib.suppress(Exception),
    ):
        warnings.simplefilter("ignore")
        args, kwargs = nest.map_leaves(zeros, (args, kwargs))
        return function(*args, **kwargs)
    return torch.zeros(())
