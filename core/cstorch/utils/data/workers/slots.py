"""Shared memory of one worker, cut into slots of one batch each; and how the tensors of a batch lie in a slot."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from cstorch.tracing import nest

_ALIGNMENT = 64
_CACHED = 32 << 20  # bytes: a ring that stays in the last-level cache is several times as fast
_FEW, _MANY = 4, 64


class Place:
    """Stands in a batch for a tensor that lies in the slot. No dataclass: it is a leaf of the batch."""

    __slots__ = ("dtype", "numel", "offset", "shape")

    def __init__(self, offset: int, shape: torch.Size, dtype: torch.dtype) -> None:
        self.offset, self.shape, self.dtype, self.numel = offset, shape, dtype, shape.numel()


@dataclass(frozen=True)
class Layout:
    """The structure of batches.

    Attributes:
        template: A batch with a `Place` for each tensor.
        places: The places, in order.
        nbytes: What a slot must hold.
    """

    template: Any
    places: tuple[Place, ...]
    nbytes: int


def layout_of(batch: Any) -> Layout:
    """How `batch` lies in a slot."""
    places: list[Place] = []
    end = 0

    def place(leaf: Any) -> Any:
        nonlocal end
        if not isinstance(leaf, torch.Tensor):
            return leaf
        places.append(Place(end, leaf.shape, leaf.dtype))
        size = leaf.numel() * leaf.element_size()
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
        return places[-1]

    template = nest.map_leaves(place, batch)
    return Layout(template, tuple(places), max(end, _ALIGNMENT))


class Slots:
    """A mapping of shared memory without a name: it is gone when the last process that holds it ends.

    Args:
        fd: A memory file, closed by this object; a new one is made by default.
        slot_bytes: Bytes of one slot.
        count: How many slots; by default as many as pay.
    """

    def __init__(self, slot_bytes: int, count: int | None = None, fd: int | None = None) -> None:
        page = mmap.PAGESIZE
        self.slot_bytes = -(-slot_bytes // page) * page if fd is None else slot_bytes
        self.count = count or min(max(_CACHED // self.slot_bytes, _FEW), _MANY)
        total = self.slot_bytes * self.count
        self.fd = os.memfd_create("cstorch-batches") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, total)
        self._memory = mmap.mmap(self.fd, total)

    def close_fd(self) -> None:
        """The mapping stays; the descriptor is needed no more."""
        os.close(self.fd)
        self.fd = -1

    def tensors(self, slot: int, layout: Layout, released: Callable[[], None] | None = None) -> list[torch.Tensor]:
        """The tensors of a slot, as views of the shared memory.

        Args:
            slot: Which slot.
            layout: How they lie in it.
            released: Called when the last view of the slot is gone.
        """
        memory = (ctypes.c_char * self.slot_bytes).from_buffer(self._memory, slot * self.slot_bytes)
        if released is not None:
            weakref.finalize(memory, released).atexit = False
        return [
            torch.frombuffer(memory, dtype=p.dtype, count=p.numel, offset=p.offset).view(p.shape)
            if p.numel
            else torch.empty(p.shape, dtype=p.dtype)
            for p in layout.places
        ]
