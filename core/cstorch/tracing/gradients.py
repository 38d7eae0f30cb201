"""Follows `.grad` through a trace, so that a replay leaves every gradient as eager PyTorch would.

A gradient that the step clears, accumulates and hands to an optimizer lives inside the program and is not
kept. A gradient that is left for a later call (accumulation over several batches) is state: the program
returns it and the next one starts from it. Whether a gradient was there at the start is a guard, unless the
step clears it before it looks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from cstorch.device import CsxTensor
from cstorch.device.tensor import CONSUMED
from cstorch.errors import StateError


class GradientOf:
    """State of a program: the gradient that a tensor has when the program runs, whatever object it is then."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: CsxTensor) -> None:
        self.tensor = tensor

    def detach(self) -> Any:
        """The host memory of the gradient."""
        grad = self.tensor.grad
        return grad._host if isinstance(grad, CsxTensor) else grad


def is_there(tensor: torch.Tensor) -> bool | None:
    """Whether `tensor.grad` has contents: False for no gradient, None for one that an earlier program consumed."""
    grad = tensor.grad
    if grad is None:
        return False
    return None if isinstance(grad, CsxTensor) and grad.is_handle else True


@dataclass(frozen=True)
class GradientPlan:
    """What a program does to gradients.

    Attributes:
        guards: Tensors, each with what `is_there` must say when the program starts.
        cleared: Tensors whose `.grad` is None afterwards.
        kept: Tensors, each with the output of the program that is its `.grad` afterwards.
        given: Tensors, each with the tensor that the step made its `.grad`.
        consumed: Tensors, each with the handle that stands for a gradient that only the program had.
    """

    guards: list[tuple[CsxTensor, bool | None]] = field(default_factory=list)
    cleared: list[CsxTensor] = field(default_factory=list)
    kept: list[tuple[CsxTensor, int]] = field(default_factory=list)
    given: list[tuple[CsxTensor, torch.Tensor]] = field(default_factory=list)
    consumed: list[tuple[CsxTensor, CsxTensor]] = field(default_factory=list)

    def mismatch(self) -> str | None:
        """Which guard does not hold, in words."""
        for tensor, there in self.guards:
            now = is_there(tensor)
            if now is not there:
                words = {True: "of an earlier call are there", False: "are missing", None: "were used up"}
                return f"gradients {words[now]} now (of a parameter of shape {tuple(tensor.shape)})"
        return None


class GradientKeeper:
    """Leaves the gradients of one program after each of its runs.

    Args:
        plan: What the program does.
    """

    changes = 0  # how often any program has left a gradient that the one before had not

    def __init__(self, plan: GradientPlan) -> None:
        self._plan = plan
        self._writes = bool(plan.cleared or plan.kept or plan.given)
        self._consumed = plan.consumed
        self._seen = -1

    def leave(self, outputs: list[torch.Tensor]) -> None:
        """Set every `.grad` as the step would have."""
        if self._writes:
            plan = self._plan
            GradientKeeper.changes += 1
            for tensor in plan.cleared:
                tensor.grad = None
            for tensor, index in plan.kept:
                tensor.grad = CsxTensor(outputs[index])  # a new object, since the user may hold the one before
            for tensor, grad in plan.given:
                tensor.grad = grad
        if self._consumed:
            tensor, handle = self._consumed[0]
            if self._seen != GradientKeeper.changes or tensor.grad is not handle:
                GradientKeeper.changes += 1
                self._seen = GradientKeeper.changes
                for tensor, handle in self._consumed:
                    tensor.grad = handle


class GradientLedger:
    """The gradients of the tensors that one trace touches.

    Attributes:
        met: Called with each of these tensors when the step first meets it; set by a trace for several systems.
    """

    def __init__(self) -> None:
        self.met: Callable[[CsxTensor], None] | None = None
        self._before: dict[int, tuple[CsxTensor, torch.Tensor | None]] = {}
        self._looked: set[int] = set()  # before anything was cleared
        self._cleared: set[int] = set()
        self._zeroed: set[int] = set()  # cleared if there is a gradient: None stays None
        self._consumed: set[int] = set()

    def touch(self, tensor: CsxTensor) -> None:
        """Note the gradient that `tensor` has when the step first meets it."""
        if id(tensor) not in self._before and tensor.is_leaf and not tensor.is_handle:
            self._before[id(tensor)] = (tensor, _gradient(tensor))
            if self.met is not None:
                self.met(tensor)

    def is_of_before(self, tensor: CsxTensor, grad: torch.Tensor) -> bool:
        """Whether `grad` is the gradient that `tensor` had when the step began."""
        return self._before[id(tensor)][1] is grad

    def looked(self, tensor: torch.Tensor) -> None:
        """The step looks at `tensor.grad`, if only whether it is None."""
        if isinstance(tensor, CsxTensor):
            self.touch(tensor)
            if id(tensor) not in self._cleared and id(tensor) not in self._zeroed:
                self._looked.add(id(tensor))

    def assigned(self, tensor: torch.Tensor, value: Any) -> None:
        """`tensor.grad = value` is about to run."""
        if not isinstance(tensor, CsxTensor):
            return
        self.touch(tensor)
        known, key = self._before.get(id(tensor)), id(tensor)
        if known is not None and key not in self._cleared and key not in self._looked:
            untouched = _gradient(tensor) is known[1]
            (self._cleared if untouched else self._looked).add(key)

    def zeroed(self, tensors: Iterable[torch.Tensor], set_to_none: bool) -> None:
        """`zero_grad()` is about to run on `tensors`."""
        for tensor in tensors:
            if not isinstance(tensor, CsxTensor):
                continue
            grad = _gradient(tensor)
            if set_to_none:
                self.assigned(tensor, None)
            elif grad is None:
                self.touch(tensor)
                self._zeroed.add(id(tensor))
            elif isinstance(grad, CsxTensor) and grad._cell is CONSUMED:
                self.assigned(tensor, None)
                tensor.grad = torch.zeros_like(tensor)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Notice `zero_grad()` of optimizers and modules within, also where there is nothing to clear yet."""
        optimizer_zero_grad, module_zero_grad = torch.optim.Optimizer.zero_grad, nn.Module.zero_grad

        def of_optimizer(optimizer: torch.optim.Optimizer, set_to_none: bool = True) -> None:
            self.zeroed((p for group in optimizer.param_groups for p in group["params"]), set_to_none)
            optimizer_zero_grad(optimizer, set_to_none)

        def of_module(module: nn.Module, set_to_none: bool = True) -> None:
            self.zeroed(module.parameters(), set_to_none)
            module_zero_grad(module, set_to_none)

        torch.optim.Optimizer.zero_grad = of_optimizer  # type: ignore[method-assign, assignment]
        nn.Module.zero_grad = of_module  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            torch.optim.Optimizer.zero_grad = optimizer_zero_grad  # type: ignore[method-assign]
            nn.Module.zero_grad = module_zero_grad  # type: ignore[method-assign]

    def consume(self, optimizer: torch.optim.Optimizer) -> None:
        """`optimizer` has stepped and used the gradients of its parameters."""
        for group in optimizer.param_groups:
            self._consumed.update(id(p) for p in group["params"] if _gradient(p) is not None)

    def owners(self) -> dict[int, CsxTensor]:
        """The tensors whose gradient was there at the start, by the id of that gradient."""
        return {id(before): tensor for tensor, before in self._before.values() if before is not None}

    def plan(self, recorder: Any, keep: Callable[[CsxTensor], int]) -> GradientPlan:
        """What the finished trace did to gradients.

        Args:
            recorder: The trace.
            keep: Makes a tensor an output of the program; its index.
        """
        plan = GradientPlan()
        owners = self.owners()
        read = {id(entry.source) for entry in recorder.inputs if entry.node.users}
        for key, (tensor, before) in self._before.items():
            after = _gradient(tensor)
            if not tensor.requires_grad and before is None and after is None:
                continue
            cleared = key in self._cleared and id(before) not in read
            if not cleared and not (key in self._zeroed and after is not before):
                there = None if isinstance(before, CsxTensor) and before._cell is CONSUMED else before is not None
                plan.guards.append((tensor, there))
            if after is None:
                if cleared or before is not None:
                    plan.cleared.append(tensor)
            elif after is before:
                pass  # accumulated in place, or untouched
            elif not isinstance(after, CsxTensor) or not (after.is_handle or id(after) in owners):
                plan.given.append((tensor, after))
            elif (cleared or key in self._zeroed) and key in self._consumed:
                plan.consumed.append((tensor, _consumed_like(after)))
            else:
                plan.kept.append((tensor, keep(after)))
        return plan

    def restore(self) -> None:
        """Put every gradient back as it was before the trace."""
        for tensor, before in self._before.values():
            tensor.grad = before


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    """`tensor.grad`, unnoticed."""
    with torch._C.DisableTorchFunction():
        return tensor.grad


def _consumed_like(grad: CsxTensor) -> CsxTensor:
    assert grad._fake is not None
    made = CsxTensor(grad._fake, host=False)
    made._cell = CONSUMED
    return made


def refuse_consumed() -> StateError:
    """The error for using a gradient that lived inside an earlier program only."""
    return StateError(
        "a gradient is used that an earlier traced step consumed: a step that clears gradients, computes them "
        "and hands them to an optimizer keeps them inside its program. To keep one, copy it inside that step "
        "with a step closure, or call zero_grad() before the next backward()."
    )
