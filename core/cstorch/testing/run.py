"""One run of a conformance program: in plain eager PyTorch, which says what is expected, or on a backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import cstorch


class EagerRun:
    """Runs a program in eager PyTorch on the cpu, without cstorch.

    Attributes:
        seen: What the program saw, in order.
    """

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def prepare(self, model: nn.Module) -> Callable[..., Any]:
        """Bring `model` to the device; what to call for its forward pass."""
        return model

    def trace(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The decorator of the program's step functions."""
        return step

    def see(self, *values: Any) -> None:
        """Note values that are to be as expected; in a step, or in the loop around it."""
        self.seen.append(contents(values))

    def on_host(self, function: Callable[..., Any], *args: Any) -> None:
        """Call `function` with the values of `args` on the host, at the end of the step."""
        function(*contents(args))


class BackendRun(EagerRun):
    """Runs a program on the current backend."""

    def prepare(self, model: nn.Module) -> Callable[..., Any]:
        """As for EagerRun."""
        return cstorch.compile(model)

    def trace(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """As for EagerRun."""
        return cstorch.trace(step)

    def see(self, *values: Any) -> None:
        """As for EagerRun."""
        self.on_host(super().see, *values)

    def on_host(self, function: Callable[..., Any], *args: Any) -> None:
        """As for EagerRun."""
        cstorch.step_closure(function)(*args)


def contents(value: Any) -> Any:
    """A copy of `value` on the cpu; of modules and optimizers, their state."""

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, (nn.Module, torch.optim.Optimizer)):
            return contents(leaf.state_dict())
        return leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(copied, value)
