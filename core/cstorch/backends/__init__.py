"""The backends CSX, CPU and GPU, and `backends.csx`, the flags of the first (`cerebras.pytorch.backends`)."""

from cstorch.backends import csx
from cstorch.backends.csx import DEFAULT

__all__ = ["DEFAULT", "csx"]
