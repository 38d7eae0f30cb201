"""Names of `cerebras.pytorch.experimental` that programs ask for."""

from cstorch.experimental import listener

__all__ = ["listener"]
