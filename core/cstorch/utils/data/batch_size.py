"""The batch size of a batch of any structure."""

from __future__ import annotations

from typing import Any

import torch

from cstorch.tracing import nest


def infer_batch_size(batch: Any) -> int | None:
    """The first dimension that all tensors of a batch share, or None when they differ or there is none.

    Args:
        batch: Any nesting of tensors.
    """
    sizes = {t.shape[0] for t in nest.leaves(batch) if isinstance(t, torch.Tensor) and t.dim() > 0}
    return sizes.pop() if len(sizes) == 1 else None
