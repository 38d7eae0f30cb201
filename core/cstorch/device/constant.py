"""Tensors of one value that take no memory until they are written: ordinary cpu tensors on copy-on-write pages.

Zeros are an anonymous mapping, whose pages the system shares until the first write. Any other value is written once
into a small file in memory, which is mapped again and again, privately, over the whole tensor.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
from typing import Any

import torch

from cstorch.device.mapped import NORESERVE, map_over

SMALLEST = 1 << 20
"""Fewer bytes than this are simply allocated."""

_MAPPINGS = 512  # of at most that many pieces; a process may have some 65,000


def constant(shape: tuple[int, ...], value: Any, dtype: torch.dtype) -> torch.Tensor:
    """A contiguous cpu tensor filled with `value`."""
    count = math.prod(shape)
    nbytes = count * dtype.itemsize
    if nbytes >= SMALLEST and sys.platform == "linux":
        try:
            return torch.frombuffer(_mapped(nbytes, value, dtype), dtype=dtype, count=count).view(shape)
        except OSError:  # the system does not lend more than it has
            pass
    return torch.full(shape, value, dtype=dtype)


def _mapped(nbytes: int, value: Any, dtype: torch.dtype) -> mmap.mmap:
    pattern = torch.full((mmap.PAGESIZE // dtype.itemsize,), value, dtype=dtype).view(torch.uint8).numpy().tobytes()
    size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    if not any(pattern):
        return memory
    pages = max(64, -(-size // (_MAPPINGS * mmap.PAGESIZE)))
    piece = min(pages * mmap.PAGESIZE, size)
    file = os.memfd_create("constant")
    try:
        with os.fdopen(os.dup(file), "wb") as out:
            for _ in range(piece // mmap.PAGESIZE):
                out.write(pattern)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for offset in range(0, size, piece):
            map_over(start + offset, min(piece, size - offset), file)
    finally:
        os.close(file)
    return memory
