"""Pages of a file as private memory: written to, they are copied, and the file never changes."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from typing import Any

NORESERVE = 0x4000  # of Linux: the pages need not be there beforehand
_FIXED = 0x10
_HUGE_PAGE = 2 << 20
"""The system maps so many bytes at once where address and place in the file are the same distance from a multiple."""


@functools.cache
def _libc_mmap() -> Any:
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    return call


def map_over(address: int, size: int, file: int, offset: int = 0) -> None:
    """Map `file` from `offset` on, both of whole pages, over memory that is mapped already.

    Raises:
        OSError: the system has no more mappings to give.
    """
    access = mmap.PROT_READ | mmap.PROT_WRITE
    found = _libc_mmap()(address, size, access, mmap.MAP_PRIVATE | NORESERVE | _FIXED, file, offset)
    if found != address:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mapped(file: int, offset: int, size: int) -> tuple[mmap.mmap, int]:
    """The pages that hold `size` bytes from `offset` on, and where in them these begin; no descriptor is kept.

    Raises:
        OSError: the system has no more mappings to give.
    """
    start = offset // mmap.PAGESIZE * mmap.PAGESIZE
    length = -(-(offset + size - start) // mmap.PAGESIZE) * mmap.PAGESIZE
    slack = _HUGE_PAGE if length >= _HUGE_PAGE else 0
    memory = mmap.mmap(-1, length + slack, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    skipped = (start - address) % _HUGE_PAGE if slack else 0
    map_over(address + skipped, length, file, start)
    return memory, offset - start + skipped
