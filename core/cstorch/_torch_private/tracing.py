"""PyTorch's private surface for tracing: fake tensors, modes, the is-compiling flag (torch 2.13)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils import _device
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as outside_modes

__all__ = [
    "DATA_DEPENDENT",
    "FakeTensorMode",
    "Propagate",
    "TorchDispatchMode",
    "any_autocast",
    "compiling",
    "counts_as_given",
    "default_device",
    "deterministic",
    "fake_of",
    "masks_as_given",
    "mutated_arguments",
    "outside_modes",
    "propagate",
    "raw_optimizer_step",
]

DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
"""What fake tensors raise when a result depends on values."""


any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
"""Whether autocast is on for some device."""

deterministic: Callable[[], bool] = torch._C._get_deterministic_algorithms
"""`torch.are_deterministic_algorithms_enabled` without a Python call."""


def default_device() -> torch.device | None:
    """What `torch.set_default_device` has set, which `torch.get_default_device` says a hundred times slower."""
    return _device.CURRENT_DEVICE


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """`torch.compiler.is_compiling()` is true within, so torch.optim stays in tensor arithmetic."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def fake_of(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    """The fake cpu tensor of `mode` for `tensor`, a cpu tensor or, where its contents are not there, a meta tensor."""
    if tensor.device.type == "meta":
        return FakeTensor(mode, tensor, torch.device("cpu"))
    fake: torch.Tensor = mode.from_tensor(tensor)
    return fake


class Propagate(fx.Interpreter):
    """Runs a graph and keeps what each node makes in its `meta["val"]`; that of placeholders stays."""

    def run_node(self, n: fx.Node) -> Any:
        """Run one node."""
        value = super().run_node(n)
        if n.op not in ("placeholder", "output"):
            n.meta["val"] = value
        return value


def propagate(graph: fx.GraphModule) -> None:
    """Run `graph` on fake tensors like the `meta["val"]` of its placeholders, and set that of all other nodes."""
    shapes = None
    if graph.graph.find_nodes(op="call_function", target=torch.ops.higher_order.while_loop):  # loops ask for it
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        shapes = ShapeEnv()
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes)

    with mode, torch.no_grad():
        like = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
        inputs = [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype) for v in like]
        Propagate(graph).run(*inputs)


def mutated_arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Arguments that the operator `func` writes to, in the order of its schema."""
    if func is torch.ops.aten.native_batch_norm.default:  # its schema does not say so
        training = args[5] if len(args) > 5 else kwargs["training"]
        running = (args[i] if len(args) > i else kwargs[name] for i, name in ((3, "running_mean"), (4, "running_var")))
        return [value for value in running if value is not None] if training else []
    schema = func._schema
    if not schema.is_mutable:
        return []
    found: list[Any] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            found.extend(value if isinstance(value, (list, tuple)) else [value])
    return found


def raw_optimizer_step(optimizer: torch.optim.Optimizer) -> Any:
    """The class's `step` without the wrapper that calls step hooks and profilers."""
    step = type(optimizer).step
    return getattr(step, "__wrapped__", step) if getattr(step, "hooked", False) else step


@contextlib.contextmanager
def masks_as_given() -> Iterator[None]:
    """nn.Transformer does not look into its masks within: it would read them to see whether they are causal."""
    from torch.nn.modules import transformer

    before = transformer._detect_is_causal_mask

    def detect(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True

    transformer._detect_is_causal_mask = detect
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = before


@contextlib.contextmanager
def counts_as_given() -> Iterator[None]:
    """`nn.BatchNorm*d(momentum=None)` does not make a Python float of its count of batches within."""
    from torch.nn.modules import batchnorm

    def convert(value: Any) -> Any:
        return value if isinstance(value, torch.Tensor) else float(value)

    batchnorm.float = convert  # type: ignore[attr-defined]  # the module's own name goes before the builtin
    try:
        yield
    finally:
        del batchnorm.float  # type: ignore[attr-defined]
