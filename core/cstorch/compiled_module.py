"""`cstorch.compile`: moves a model to the device and returns a callable that stands for it in traced steps."""

from __future__ import annotations

from typing import Any

from torch import nn

from cstorch.backend import Backend
from cstorch.backend import backend as make_backend
from cstorch.errors import BackendError
from cstorch.tracing.context import context

_PASSED_ON = frozenset(
    {
        "train", "eval", "parameters", "named_parameters", "buffers", "named_buffers", "modules",
        "named_modules", "children", "named_children", "state_dict", "load_state_dict", "zero_grad",
        "requires_grad_", "apply", "training",
    }
)  # fmt: skip


class CompiledModule:
    """Stands for a model after `cstorch.compile`: call it to run the forward pass.

    The public methods of nn.Module and of the model are there; attributes of the model are not.

    Args:
        model: The model, on its device.
        backend: The backend that it was prepared for.
    """

    def __init__(self, model: nn.Module, backend: Backend) -> None:
        self._model = model
        self._forward = backend.forward_of(model)
        self.backend = backend
        self.device = backend.torch_device

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward pass."""
        return self._forward(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            method = getattr(type(self._model), name, None)
            if name in _PASSED_ON or callable(method):
                return getattr(self._model, name)
        raise AttributeError(
            f"{name!r} of {type(self._model).__name__} cannot be reached through the compiled module; "
            "use the model that was given to cstorch.compile."
        )

    def __repr__(self) -> str:
        return f"CompiledModule({self._model!r})"


def compile(model: nn.Module, backend: str | Backend | None = None) -> CompiledModule:  # noqa: A001
    """Prepare a module for tracing (`cerebras.pytorch.compile`).

    The parameters move to the device, keeping their identity: optimizers and tied weights stay valid.

    Args:
        model: The module. Initialise it before.
        backend: A backend, or the type of one to make; the current one by default. When there is none, the
            CPU backend is made.

    Returns:
        A callable for the forward pass with the module's public methods.

    Raises:
        BackendError: `backend` is another object than the current backend.
        TypeError: `model` is not a module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"compile() got a {type(model).__name__}, expected a torch.nn.Module.")
    if isinstance(backend, str):
        chosen = make_backend(backend)
    elif backend is None:
        chosen = context.backend if context.backend is not None else make_backend("CPU")
    else:
        chosen = backend
    if chosen is not context.backend:
        raise BackendError(
            "compile() got another backend than the current one. Only one backend is active in a process: "
            "pass the current one, or None."
        )
    model.to(chosen.torch_device)
    transfer = getattr(model, "_post_device_transfer", None)
    if transfer is not None:
        transfer()
    if not isinstance(getattr(type(model), "device", None), property):
        object.__setattr__(model, "device", chosen.torch_device)
    if not any(known is model for known in chosen.modules):
        chosen.modules.append(model)
    return CompiledModule(model, chosen)
