"""Names of modules by their place in a model, for tools that dump or annotate (`cerebras.pytorch.add_debug_name`)."""

from __future__ import annotations

from torch import nn

_ATTRIBUTE = "_debug_name"


def add_debug_name(module: nn.Module, root_name: str | None = None) -> None:
    """Name a module and every module in it by its path: `model`, `model.layers.0`.

    Args:
        module: The root.
        root_name: Its own name; default the class's.
    """
    root = root_name or type(module).__name__
    for path, part in module.named_modules():
        object.__setattr__(part, _ATTRIBUTE, f"{root}.{path}" if path else root)


def get_debug_name(module: nn.Module) -> str:
    """The name that `add_debug_name` gave a module; its class's where it was given none.

    Args:
        module: The module.
    """
    return str(getattr(module, _ATTRIBUTE, type(module).__name__))
