"""The base of cstorch's optimizers: a torch.optim.Optimizer whose state can be made before the first step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from cstorch.device import lazy

ParamsT = Iterable[torch.Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, torch.Tensor]]


class Optimizer(torch.optim.Optimizer):
    """Base class (`cerebras.pytorch.optim.Optimizer`).

    Subclasses name the state of a parameter in `initial_state` and change the parameters in `step`. Every number of a
    param_group may be a float or a tensor.

    Args:
        params: Parameters, or dicts of them: the param_groups.
        defaults: The numbers of a group that names none.
        enable_global_step: Whether each parameter counts its steps in `state[p]["global_step"]`.
    """

    def __init__(self, params: ParamsT, defaults: dict[str, Any], enable_global_step: bool = False) -> None:
        super().__init__(params, defaults)
        self.enable_global_step = enable_global_step

    def initial_state(self, parameter: torch.Tensor, group: dict[str, Any]) -> dict[str, torch.Tensor]:
        """The state of a parameter before the first step, as tensors.

        Args:
            parameter: The parameter.
            group: Its param_group.
        """
        return {}

    def state_of(self, parameter: torch.Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """The state of a parameter, made if there is none.

        Args:
            parameter: The parameter.
            group: Its param_group.
        """
        state: dict[str, Any] = self.state[parameter]
        if not state.keys() - {"global_step"}:  # which may have been counted before
            state.update(self.initial_state(parameter, group))
            if getattr(self, "enable_global_step", False):
                state.setdefault("global_step", torch.zeros((), dtype=torch.float32, device=parameter.device))
        return state

    @torch.no_grad()
    def preinitialize(self) -> None:
        """Make the state of every parameter now; otherwise it is made when the first step begins."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and not self.state_of(parameter, group):
                    del self.state[parameter]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take on what `state_dict` returned, each number and tensor where and as `initial_state` makes it.

        Args:
            state_dict: Of an optimizer of the same class with the same param_groups.

        Raises:
            ValueError: the param_groups differ in number or size.
        """
        given: list[dict[str, Any]] = []
        hooks = (
            self.register_load_state_dict_pre_hook(lambda _, final: given.append(final)),
            self.register_load_state_dict_post_hook(lambda _: self._settle(given[0]), prepend=True),
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()

    @torch.no_grad()
    def _settle(self, given: dict[str, Any]) -> None:
        """Torch has given all tensors the dtype of their parameters, and left counts where they were saved."""
        for group, saved in zip(self.param_groups, given["param_groups"], strict=True):
            for parameter, index in zip(group["params"], saved["params"], strict=True):
                state = self.state.get(parameter)
                if not state:
                    continue
                with lazy.recording():
                    like = self.initial_state(parameter, group)
                    like["global_step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                for key in like.keys() & state.keys():
                    value, dtype, device = state[key], like[key].dtype, like[key].device
                    if (value.dtype, value.device) != (dtype, device):
                        state[key] = given["state"][index][key].to(device, dtype, copy=True)

    def increment_global_step(self, p: torch.Tensor) -> torch.Tensor:
        """Count a step of a parameter.

        Args:
            p: The parameter.

        Returns:
            The steps so far, a float32 tensor without dimensions.
        """
        state = self.state[p]
        if "global_step" not in state:
            state["global_step"] = torch.zeros((), dtype=torch.float32, device=p.device)
        state["global_step"].add_(1)
        count: torch.Tensor = state["global_step"]
        return count

    def register_zero_grad_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` before each `zero_grad`; the handle's `remove` ends that.

        Args:
            hook: Returns None, or a tuple of other args and kwargs.

        Returns:
            The handle.
        """
        return self._zero_grad_hook("_zero_grad_pre_hooks", hook)

    def register_zero_grad_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` after each `zero_grad`; the handle's `remove` ends that.

        Args:
            hook: What it returns is ignored.

        Returns:
            The handle.
        """
        return self._zero_grad_hook("_zero_grad_post_hooks", hook)

    def _zero_grad_hook(self, table: str, hook: Callable[..., Any]) -> RemovableHandle:
        hooks: dict[int, Callable[..., Any]] = self.__dict__.setdefault(table, OrderedDict())
        handle = RemovableHandle(hooks)
        hooks[handle.id] = hook
        return handle

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Forget the gradients, as `torch.optim.Optimizer.zero_grad`."""
        for hook in list(self.__dict__.get("_zero_grad_pre_hooks", {}).values()):
            changed = hook(self, args, kwargs)
            if changed is not None:
                args, kwargs = changed
        super().zero_grad(*args, **kwargs)
        for hook in list(self.__dict__.get("_zero_grad_post_hooks", {}).values()):
            hook(self, args, kwargs)

    def apply(self, f: Any) -> Any:
        """`f.apply(self)`, or `f(self)` for a function: how a sparsity algorithm takes hold of an optimizer.

        Args:
            f: An algorithm or a function.
        """
        return f.apply(self) if hasattr(f, "apply") else f(self)


class ParameterOptimizer(Optimizer):
    """An optimizer that changes each parameter by itself: subclasses say how in `update`."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change the parameters that have a gradient.

        Args:
            closure: Computes the loss again, which is returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, group)
        return loss

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """Change one parameter.

        Args:
            parameter: The parameter.
            gradient: Its gradient.
            group: Its param_group.
        """
        raise NotImplementedError


def check_range(optimizer: str, **numbers: tuple[Any, float, float]) -> None:
    """Refuse a number outside its range.

    Args:
        optimizer: Its class, for the message.
        numbers: For each name the number, the least allowed and the first not allowed.

    Raises:
        ValueError: one is outside.
    """
    for name, (value, low, high) in numbers.items():
        if not low <= value < high:
            raise ValueError(f"{optimizer} got {name}={value}, expected a number of at least {low} and below {high}.")
