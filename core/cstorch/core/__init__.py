"""Modules that programs import from `cerebras.pytorch.core`."""

from cstorch.core import annotation, compile, modes  # noqa: A004

__all__ = ["annotation", "compile", "modes"]
