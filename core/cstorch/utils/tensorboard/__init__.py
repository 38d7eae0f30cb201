"""TensorBoard event files, written and read (`cerebras.pytorch.utils.tensorboard`)."""

from __future__ import annotations

from cstorch.summaries import summarize_scalar, summarize_tensor
from cstorch.utils.tensorboard.reader import SummaryReader
from cstorch.utils.tensorboard.tensors import TensorDescriptor
from cstorch.utils.tensorboard.writer import SummaryWriter

__all__ = ["SummaryReader", "SummaryWriter", "TensorDescriptor", "summarize_scalar", "summarize_tensor"]
