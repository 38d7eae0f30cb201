"""Chooses for `scaled_dot_product_attention` the kernel that eager PyTorch would choose on the cpu.

By its device name csx would get the composite form, with the whole attention matrix in memory. The flash kernel
gives the numbers of eager PyTorch, reads strided heads as they are, and is faster.
"""

from __future__ import annotations

from typing import Any

import torch

from cstorch.device.autocast import lowered

_DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """The call, with the arguments of the torch function, on the flash kernel; NotImplemented where it has none."""
    query, key, value, attn_mask = lowered(query, key, value, attn_mask)
    heads = (query, key, value)
    if dropout_p != 0 or enable_gqa or not all(isinstance(t, torch.Tensor) and t.dim() == 4 for t in heads):
        return NotImplemented
    if len({t.dtype for t in heads}) != 1 or query.dtype not in _DTYPES or len({t.shape[-1] for t in heads}) != 1:
        return NotImplemented
    if len({t.shape[:2] for t in heads}) != 1 or any(t.stride(-1) != 1 or t.numel() == 0 for t in heads):
        return NotImplemented
    if attn_mask is not None and (is_causal or attn_mask.requires_grad or attn_mask.dim() not in (2, 4)):
        return NotImplemented
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        zeros = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = zeros.masked_fill(attn_mask.logical_not(), float("-inf"))
    if scale is not None:
        scale = float(scale)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )[0]
