"""Dynamic loss scaling as part of a traced step: what `torch.amp.GradScaler` does, without reading a value.

The scale and its counters are tensors of the program. Where a gradient is not finite, the optimizer's step is
computed and then taken back by selection, so that a replay needs no decision of the host.
"""

from __future__ import annotations

from typing import Any

import torch

from cstorch._torch_private.tracing import outside_modes
from cstorch.device import CSX
from cstorch.device.registration import NAME
from cstorch.errors import OptimizerError
from cstorch.tracing.scalars import is_number, plain_number
from cstorch.where import user_line

_KINDS = {
    "scale": torch.float32,
    "growth_factor": torch.float32,
    "backoff_factor": torch.float32,
    "growth_interval": torch.int32,
    "_growth_tracker": torch.int32,
}


class LossScale:
    """A loss scale that shrinks when gradients overflow and grows when they have not for a while.

    Args:
        init_scale: The first scale.
        growth_factor: What the scale is multiplied by after `growth_interval` steps without overflow.
        backoff_factor: What it is multiplied by after an overflow.
        growth_interval: A number of steps.
        device: Where the scale is: csx, or cpu for steps that are not traced.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        device: torch.device | str = CSX,
    ) -> None:
        self._device = torch.device(device)
        numbers = (init_scale, growth_factor, backoff_factor, growth_interval, 0)
        with outside_modes():
            made = [torch.tensor(n, dtype=kind) for n, kind in zip(numbers, _KINDS.values(), strict=True)]
            self._state = {name: tensor.to(self._device) for name, tensor in zip(_KINDS, made, strict=True)}
        self._overflows: dict[int, torch.Tensor] = {}

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss to call `backward` on."""
        return loss * self._state["scale"].to(loss.dtype if loss.dtype.is_floating_point else torch.float32)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of `optimizer` by the scale, and look whether they are finite.

        Raises:
            OptimizerError: a gradient is float16, or was unscaled in this step before.
        """
        if id(optimizer) in self._overflows:
            raise OptimizerError(f"the gradients of {type(optimizer).__name__} are unscaled twice at {user_line()}.")
        inverse = self._state["scale"].double().reciprocal().float()
        overflow = torch.zeros((), dtype=torch.bool, device=self._device)
        for parameter in parameters_of(optimizer):
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.dtype == torch.float16:
                raise OptimizerError(
                    f"a float16 parameter {tuple(parameter.shape)} has a float16 gradient, whose overflow cannot be "
                    "mended by a loss scale. Keep the parameters in float32: autocast makes float16 of them where "
                    "that is safe."
                )
            overflow = overflow | ~torch.isfinite(gradient).all()
            gradient.mul_(inverse)
        self._overflows[id(optimizer)] = overflow

    def step(self, optimizer: torch.optim.Optimizer, **kwargs: Any) -> None:
        """`optimizer.step()`, without effect where a gradient is not finite.

        Args:
            optimizer: The optimizer; its gradients are unscaled unless they have been.
            kwargs: What its `step` takes.

        Raises:
            OptimizerError: the step changes what cannot be taken back.
        """
        if id(optimizer) not in self._overflows:
            self.unscale_(optimizer)
        overflow = self._overflows[id(optimizer)]
        if self._device.type != NAME:
            if not overflow:
                optimizer.step(**kwargs)
            return
        before = _Before(optimizer)
        optimizer.step(**kwargs)
        before.put_back_where(overflow)

    def update(self) -> None:
        """Set the scale of the next step: after an overflow a smaller one, after many steps without, a larger."""
        state, overflow = self._state, self._any_overflow()
        scale, good = state["scale"], state["_growth_tracker"] + 1
        grown = scale * state["growth_factor"]
        grows = good == state["growth_interval"]
        next_scale = torch.where(grows & torch.isfinite(grown), grown, scale)
        next_good = torch.where(grows, torch.zeros_like(good), good)
        scale.copy_(torch.where(overflow, scale * state["backoff_factor"], next_scale))
        state["_growth_tracker"].copy_(torch.where(overflow, torch.zeros_like(good), next_good))

    def _any_overflow(self) -> torch.Tensor:
        """Whether any gradient that was unscaled in this step was not finite; the step is over."""
        overflow = torch.zeros((), dtype=torch.bool, device=self._device)
        for found in self._overflows.values():
            overflow = overflow | found
        self._overflows.clear()
        return overflow

    def state_dict(self) -> dict[str, Any]:
        """What `torch.amp.GradScaler.state_dict` holds."""
        return {name: tensor.item() for name, tensor in self._state.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned, here or on a GradScaler.

        Raises:
            KeyError: an entry is missing.
        """
        missing = [name for name in self._state if name not in state_dict]
        if missing:
            raise KeyError(f"the state of a loss scale lacks {', '.join(missing)}; it has {', '.join(state_dict)}.")
        for name, tensor in self._state.items():
            tensor.copy_(torch.tensor(state_dict[name], dtype=tensor.dtype))


class _Before:
    """All that an optimizer's step may change, as it is before the step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._numbers = _numbers(optimizer)
        self._hook = optimizer.register_step_pre_hook(self._note)

    def _note(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Called right before the step, when the state has been made."""
        with_gradient = [p for p in parameters_of(optimizer) if p.grad is not None]
        tensors = [*with_gradient, *_state(optimizer).values()]
        self._tensors = [(t, t.detach().clone()) for t in tensors if isinstance(t, torch.Tensor)]
        self._keys = _state(optimizer).keys()

    def put_back_where(self, overflow: torch.Tensor) -> None:
        """Select what was there before, where `overflow` holds."""
        self._hook.remove()
        new = sorted({key for _, key in _state(self._optimizer).keys() - self._keys})
        if new:
            raise _cannot_skip(self._optimizer, f"makes its state {', '.join(map(repr, new))} of gradients")
        if _numbers(self._optimizer) != self._numbers:
            raise _cannot_skip(self._optimizer, "counts in numbers")
        with torch.no_grad():
            for tensor, old in self._tensors:
                tensor.copy_(torch.where(overflow, old, tensor))


def _cannot_skip(optimizer: torch.optim.Optimizer, what: str) -> OptimizerError:
    return OptimizerError(
        f"{type(optimizer).__name__}.step() {what} (at {user_line()}), which cannot be taken back where float16 "
        "gradients overflow. Use bfloat16, which needs no loss scale, or an optimizer that keeps all its state in "
        "tensors from the start (Adam, AdamW, SGD without dampening)."
    )


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters of all groups of an optimizer."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _state(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], Any]:
    return {(id(p), key): value for p, table in optimizer.state.items() for key, value in table.items()}


def _numbers(optimizer: torch.optim.Optimizer) -> dict[Any, Any]:
    """The numbers that a step may count in: of the groups, of the state, of the optimizer itself."""
    groups = {(i, k): v for i, g in enumerate(vars(optimizer)["param_groups"]) for k, v in g.items() if k != "params"}
    found: dict[Any, Any] = {**groups, **_state(optimizer), **vars(optimizer)}
    plain = {key: plain_number(value) for key, value in found.items()}
    return {key: v for key, v in plain.items() if is_number(v) or (type(v) in (tuple, list) and all(map(is_number, v)))}
