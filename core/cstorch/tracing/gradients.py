"""Follows `.grad` through a trace, so that a replay leaves every gradient as eager PyTorch would.

A gradient that the step clears, accumulates and hands to an optimizer lives inside the program and is not
kept. A gradient that is left for a later call (accumulation over several batches) is state: the program
returns it and the next one starts from it. Whether a gradient was there at the start is a guard, unless the
step clears it first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from cstorch.device import CsxTensor
from cstorch.errors import StateError


@dataclass(frozen=True)
class GradientPlan:
    """What a program does to gradients.

    Attributes:
        guards: Tensors, each with whether it must have a gradient when the program starts.
        cleared: Tensors whose `.grad` is None afterwards.
        kept: Tensors whose `.grad` is an output of the program afterwards.
    """

    guards: list[tuple[CsxTensor, bool]] = field(default_factory=list)
    cleared: list[CsxTensor] = field(default_factory=list)
    kept: list[CsxTensor] = field(default_factory=list)


def has_gradient(tensor: torch.Tensor) -> bool:
    """Whether `tensor.grad` has contents; what an earlier program consumed has none."""
    grad = tensor.grad
    return grad is not None and not (isinstance(grad, CsxTensor) and grad.is_handle)


class GradientLedger:
    """The gradients of the tensors that one trace touches."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[CsxTensor, torch.Tensor | None]] = {}
        self._cleared: set[int] = set()
        self._consumed: set[int] = set()

    def touch(self, tensor: CsxTensor) -> None:
        """Note the gradient that `tensor` has when the step first meets it."""
        if id(tensor) not in self._before and tensor.is_leaf:
            self._before[id(tensor)] = (tensor, tensor.grad)

    def assigned(self, tensor: torch.Tensor, value: Any) -> None:
        """`tensor.grad = value` is about to run."""
        if not isinstance(tensor, CsxTensor):
            return
        self.touch(tensor)
        known = self._before.get(id(tensor))
        if value is None and known is not None and tensor.grad is known[1]:
            self._cleared.add(id(tensor))

    def zeroed(self, tensors: Iterable[torch.Tensor]) -> None:
        """`zero_grad()` is about to run on `tensors`: those with no gradient yet count as cleared too."""
        for tensor in tensors:
            if isinstance(tensor, CsxTensor) and not has_gradient(tensor):
                self.assigned(tensor, None)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Notice `zero_grad()` of optimizers and modules within, also where there is nothing to clear yet."""
        optimizer_zero_grad, module_zero_grad = torch.optim.Optimizer.zero_grad, nn.Module.zero_grad

        def of_optimizer(optimizer: torch.optim.Optimizer, set_to_none: bool = True) -> None:
            self.zeroed(p for group in optimizer.param_groups for p in group["params"])
            optimizer_zero_grad(optimizer, set_to_none)

        def of_module(module: nn.Module, set_to_none: bool = True) -> None:
            self.zeroed(module.parameters())
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
            self._consumed.update(id(p) for p in group["params"] if p.grad is not None)

    def plan(self, recorder: Any) -> GradientPlan:
        """What the finished trace did to gradients."""
        plan = GradientPlan()
        for key, (tensor, before) in self._before.items():
            if not tensor.requires_grad:
                continue
            cleared, after = key in self._cleared, tensor.grad
            if not cleared:
                alive = before is not None and not (isinstance(before, CsxTensor) and before.is_handle)
                plan.guards.append((tensor, alive))
            if after is before:
                continue
            if after is None:
                plan.cleared.append(tensor)
                continue
            consumed = cleared and key in self._consumed
            if isinstance(after, CsxTensor) and after._recorder is recorder and not consumed:
                plan.kept.append(tensor)
        return plan

    def restore(self) -> None:
        """Put every gradient back as it was: the trace failed."""
        for tensor, before in self._before.values():
            tensor.grad = before


def refuse_consumed() -> StateError:
    """The error for using a gradient that lived inside an earlier program only."""
    return StateError(
        "a gradient is used that an earlier traced step consumed: a step that clears gradients, computes them "
        "and hands them to an optimizer keeps them inside its program. To keep one, copy it inside that step "
        "with a step closure, or call zero_grad() before the next backward()."
    )
