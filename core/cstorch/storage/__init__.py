"""`cstorch.save` and `cstorch.load`: checkpoint files (`cerebras.pytorch.save`, `cerebras.pytorch.load`)."""

from cstorch.storage.load import load
from cstorch.storage.save import save

__all__ = ["load", "save"]
