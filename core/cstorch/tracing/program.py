"""A Program is a finished trace: a graph with its inputs bound, its outputs, guards and effects; it never changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import fx

from cstorch.device import CsxTensor, ValueCell
from cstorch.tracing.gradients import GradientOf, GradientPlan, is_there
from cstorch.tracing.guards import Guards
from cstorch.tracing.modules import ModuleGuards
from cstorch.tracing.optimizer_binding import OptimizerBinding
from cstorch.tracing.scalars import Number


class Executable(Protocol):
    """Runs a compiled program."""

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run once: change the state among `inputs` in place and return fresh output tensors."""
        ...


@dataclass(frozen=True)
class Effect:
    """Host work that the step asked for: a closure call or a scheduler step, repeated after each run.

    Attributes:
        kind: "closure", "checkpoint" or "host".
        function: What to call.
        args: Positional arguments, with an `Output` where a traced tensor was.
        kwargs: Keyword arguments, likewise.
    """

    kind: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Output:
    """Stands in an effect's arguments for an output of the program."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class ScalarSlot:
    """Stands in an effect's arguments or the step's result for a host scalar, evaluated at each step."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


@dataclass(frozen=True)
class Program:
    """A traced step.

    Attributes:
        graph: The graph; placeholders in the order state, leaves, scalars; one flat tuple of outputs.
        state: Tensors that the program reads and changes in place, and whose gradients it does that to.
        leaves: Positions of the step's tensor arguments that it reads.
        scalars: Numbers of a call -> values of the scalar inputs, followed by those of the scalar slots.
        scalar_dtypes: One for each scalar input.
        first_scalars: Their values in the first run, whose work on the host was done while tracing.
        holds: Numbers of a call -> whether the recorded outcomes hold.
        optimizers: Optimizers that the step uses.
        modules: What modules must be like.
        requires_grad: Parameters with the flag that they had.
        gradients: What happens to `.grad`.
        handles: Value cells of the outputs that the step returned, by output index.
        effects: Host work after each run, in call order.
        result: What the step returned; ScalarSlots where host scalars were.
        dynamic_result: Whether `result` holds scalar slots.
        name: The step function's name.
        parts: Positions of the step's tensor arguments that are divided among several systems.
        passes: What tells the graph passes of plugins that `graph` has been through from others.
        why: Why the step was traced, in words.
        micro_batch_size: So many samples at a time go through forward and backward; None: the whole batch.
    """

    graph: fx.GraphModule
    state: list[torch.Tensor | GradientOf]
    leaves: list[int]
    scalars: Callable[[list[Number]], tuple[Number, ...]]
    scalar_dtypes: list[torch.dtype]
    first_scalars: tuple[Number, ...]
    holds: Guards
    optimizers: list[OptimizerBinding]
    modules: ModuleGuards
    requires_grad: list[tuple[CsxTensor, bool]]
    gradients: GradientPlan
    handles: list[tuple[int, ValueCell]]
    effects: list[Effect]
    result: Any
    dynamic_result: bool
    name: str
    parts: list[int] = field(default_factory=list)
    passes: tuple[str, ...] = ()
    why: str = ""
    micro_batch_size: int | None = None

    def matches(self, numbers: list[Number]) -> bool:
        """Whether the program is right for a call now."""
        if self.gradients.guards:
            for tensor, there in self.gradients.guards:
                if is_there(tensor) is not there:
                    return False
        for optimizer in self.optimizers:
            if not optimizer.holds():
                return False
        return self.holds(numbers)

    @property
    def is_first_step(self) -> bool:
        """Whether it makes state that later programs start from."""
        return any(optimizer.births for optimizer in self.optimizers)

    def flags_match(self) -> bool:
        """Whether `requires_grad` of every parameter is what it was; asked again when any flag was set since."""
        return all(tensor.requires_grad is flag for tensor, flag in self.requires_grad)

    def mismatch(self, numbers: list[Number]) -> str:
        """Why `matches` is false, in words."""
        changed = self.modules.mismatch()
        if changed is not None:
            return changed
        for tensor, flag in self.requires_grad:
            if tensor.requires_grad is not flag:
                return f"a parameter of shape {tuple(tensor.shape)} has requires_grad={not flag} now"
        gradients = self.gradients.mismatch()
        if gradients:
            return gradients
        for optimizer in self.optimizers:
            if not optimizer.holds():
                return optimizer.mismatch()
        return self.holds.failed(numbers) or "nothing has changed"

    def guard_words(self) -> list[str]:
        """What must hold for the program to be used again, in words, beside the structure of its arguments."""
        parameters = f"requires_grad of {len(self.requires_grad)} parameters is as it was"
        optimizers = [f"{type(o.optimizer).__name__} has the groups and state it had" for o in self.optimizers]
        return [
            *self.modules.in_words(),
            *([parameters] if self.requires_grad else []),
            *dict.fromkeys(optimizers),
            *self.holds.in_words(),
        ]
