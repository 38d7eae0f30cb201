"""The backends CSX, CPU and GPU, and `backends.csx`, the flags of the first (`cerebras.pytorch.backends`)."""

from cstorch.backends import csx

__all__ = ["csx"]
