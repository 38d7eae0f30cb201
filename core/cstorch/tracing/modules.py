"""Follows the modules that a step calls: their mode is a guard, and tensors that they rebind are state.

`self.running = 0.9 * self.running + x` gives an attribute a new tensor. In a replay the new value must be
where the next step looks for it, so it is copied into the tensor that was there when the step began.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from cstorch.device import CsxTensor
from cstorch.errors import StateError
from cstorch.tracing.recorder import Recorder


class ModuleWatch:
    """The modules that one trace meets.

    Args:
        recorder: The trace.
        roots: Modules known beforehand, for example those that `cstorch.compile` was given.
    """

    def __init__(self, recorder: Recorder, roots: list[nn.Module]) -> None:
        self.recorder = recorder
        self._seen: dict[int, tuple[nn.Module, bool, dict[str, Any]]] = {}
        for root in roots:
            for module in root.modules():
                self._meet(module)

    def __enter__(self) -> ModuleWatch:
        self._hook = register_module_forward_pre_hook(self._before_forward)
        return self

    def __exit__(self, *error: object) -> None:
        self._hook.remove()

    def _before_forward(self, module: nn.Module, args: Any) -> None:
        self._meet(module)

    def _meet(self, module: nn.Module) -> None:
        if id(module) not in self._seen:
            self._seen[id(module)] = (module, module.training, _tensors(module))

    @property
    def modes(self) -> list[tuple[nn.Module, bool]]:
        """Every module met, with whether it was in training mode."""
        return [(module, training) for module, training, _ in self._seen.values()]

    def write_back(self) -> None:
        """Record the copies that carry rebound tensors into the tensors that were there before.

        Raises:
            StateError: an attribute was given a traced tensor where no tensor of that shape was before.
        """
        for module, _, before in self._seen.values():
            for name, value in _tensors(module).items():
                old = before.get(name)
                if value is old or not (isinstance(value, CsxTensor) and value._recorder is self.recorder):
                    continue
                if not isinstance(old, torch.Tensor) or old.shape != value.shape or old.dtype != value.dtype:
                    was = f"a tensor {tuple(old.shape)} {old.dtype}" if isinstance(old, torch.Tensor) else "no tensor"
                    raise StateError(
                        f"the step sets {type(module).__name__}.{name} to a traced tensor {tuple(value.shape)} "
                        f"{value.dtype}, and before it held {was}. What one step leaves for the next must have "
                        "a place of the same shape and dtype from the start: register it as a buffer, for "
                        f"example self.register_buffer({name!r}, torch.zeros({tuple(value.shape)})), or use a "
                        "local variable if no later step reads it."
                    )
                with torch.no_grad():
                    old.copy_(value)
                _set(module, name, old)

    def restore(self) -> None:
        """Put every attribute back: the trace failed."""
        for module, _, before in self._seen.values():
            for name, value in _tensors(module).items():
                if value is not before.get(name):
                    if name in before:
                        _set(module, name, before[name])
                    elif isinstance(value, CsxTensor) and value.is_handle:
                        _set(module, name, None)


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    found = {name: value for name, value in module._buffers.items() if value is not None}
    found.update((name, v) for name, v in module.__dict__.items() if isinstance(v, torch.Tensor))
    return found


def _set(module: nn.Module, name: str, value: torch.Tensor | None) -> None:
    if name in module._buffers:
        module._buffers[name] = value
    else:
        module.__dict__[name] = value
