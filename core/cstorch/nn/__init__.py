"""What programs use of `cerebras.pytorch.nn`."""

from cstorch.nn import functional

__all__ = ["functional"]
