"""Modules that programs import from `cerebras.pytorch.core`."""

from cstorch.core import compile, modes  # noqa: A004

__all__ = ["compile", "modes"]
