"""Between numpy arrays and torch tensors (`cerebras.pytorch.from_numpy`, `cerebras.pytorch.to_numpy`)."""

from __future__ import annotations

from typing import Any

import torch

from cstorch.device import to_host


def from_numpy(array: Any) -> torch.Tensor:
    """A cpu tensor with the contents of a numpy array, sharing its memory where it can be written.

    Args:
        array: A numpy array of a dtype that torch knows.
    """
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array)


def to_numpy(tensor: torch.Tensor) -> Any:
    """A numpy array with the contents of a tensor; shares memory with a cpu tensor. bfloat16 becomes float32.

    Args:
        tensor: Any tensor whose contents can be read.

    Raises:
        ValueReadError: the tensor stands for a value of a traced step.
    """
    host = to_host(tensor.detach(), "to_numpy()").cpu()
    if host.dtype == torch.bfloat16:
        host = host.float()
    return host.numpy()
