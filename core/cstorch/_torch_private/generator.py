"""PyTorch's private surface for random numbers: the state of a cpu generator, a Mersenne Twister (torch 2.13)."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["WORDS", "read_twister", "write_twister"]

WORDS = 624
_LEFT = slice(8, 12)
_NEXT = slice(16, 24)
_BLOCK = slice(24, 24 + 8 * WORDS)


def read_twister(state: torch.Tensor) -> tuple[np.ndarray, int]:
    """The block of words in `state`, a generator's, and how many of them have been drawn (1 to 624)."""
    raw = state.numpy()
    left = int(raw[_LEFT].view(np.int32)[0])
    return raw[_BLOCK].view(np.uint64).astype(np.uint32), WORDS + 1 - left if left > 1 else WORDS


def write_twister(state: torch.Tensor, block: np.ndarray, drawn: int) -> torch.Tensor:
    """A copy of `state` with another block, `drawn` words of it (1 to 624) being used up."""
    made = state.clone()
    raw = made.numpy()
    raw[_LEFT].view(np.int32)[0] = WORDS + 1 - drawn
    raw[_NEXT].view(np.uint64)[0] = drawn
    raw[_BLOCK].view(np.uint64)[:] = block
    return made
