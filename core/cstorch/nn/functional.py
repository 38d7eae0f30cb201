"""`cerebras.pytorch.nn.functional`."""

from __future__ import annotations

import torch

from cstorch.absent import absent


def one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """A 1 at the place of each class, and zeros.

    Args:
        tensor: Classes, whole numbers of any integer dtype, of any shape.
        num_classes: How many there are. Without it the largest class is read, which a traced step refuses.

    Returns:
        int64 of the shape of `tensor` and one more dimension of `num_classes`; all zeros for a class beyond it.
    """
    if num_classes == -1:
        num_classes = int(tensor.max()) + 1
    return (tensor.unsqueeze(-1) == torch.arange(num_classes, device=tensor.device)).long()


_ADVICE = "Gather the parts that are needed with torch.gather and multiply them densely with torch.matmul."

sparse_matmul = absent("cstorch.nn.functional.sparse_matmul", _ADVICE)
sparse_act_matmul = absent("cstorch.nn.functional.sparse_act_matmul", _ADVICE)
