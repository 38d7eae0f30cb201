"""The tensors of an open checkpoint: made of its blocks, tied as they were saved, on the device asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cstorch.device import CSX, CsxTensor, lazy
from cstorch.device.constant import constant
from cstorch.storage.opened import SMALLEST_MAPPED, OpenedCheckpoint
from cstorch.storage.source import Source

Place = Callable[[torch.UntypedStorage], torch.UntypedStorage]
"""Takes a storage on the cpu to where it is wanted."""


class Tensors:
    """Gives the tensors of a file by number.

    Args:
        opened: The file.
        memory: Gives the bytes of a block: `opened.read` or `opened.map`.
        keep: Whether tensors and blocks are kept, so that what was tied is tied; otherwise each call reads again.
        to_csx: Whether the tensors are to be on csx.
        place: Where the storages go, if not to the cpu or csx.
        expand: Whether tensors of one value stay views of one element, not to be written to.
    """

    def __init__(
        self,
        opened: OpenedCheckpoint,
        memory: Callable[[int], torch.Tensor],
        keep: bool,
        to_csx: bool = False,
        place: Place | None = None,
        expand: bool = False,
    ) -> None:
        self._expand = expand
        self.opened, self._memory, self._keep, self._to_csx, self._place = opened, memory, keep, to_csx, place
        self._known: dict[Any, torch.Tensor] = {}
        self._blocks: dict[int, torch.UntypedStorage] = {}
        self._read: frozenset[int] = frozenset()

    def __call__(self, number: int) -> torch.Tensor:
        """The tensor."""
        if not self._keep:
            return self._made(number)
        known = self._known.get(number)
        if known is None:
            known = self._known[number] = self._made(number)
        return known

    def keeping(self) -> Tensors:
        """Gives the same tensors to save them again: those that were kept, and the others unread."""
        memory = self.opened.map_unread if self._memory == self.opened.map else self._memory
        made = Tensors(self.opened, memory, True, expand=True)
        made._known.update(self._known)
        made._blocks.update(self._blocks)
        made._read = frozenset(self._blocks)
        return made

    def sources(self) -> dict[int, Source]:
        """Where the bytes of the mapped storages are that nobody was given: by the identity of the storage."""
        return {
            storage._cdata: self.opened.source(block)
            for block, storage in self._blocks.items()
            if block not in self._read and self.opened.block_size(block) >= SMALLEST_MAPPED
        }

    def _made(self, number: int) -> torch.Tensor:
        dtype, shape, stride, block, offset = self.opened.geometry(number)
        key = ("constant", block, offset, dtype, tuple(shape))
        known = self._known.get(key)
        if known is not None:
            return known.detach()
        if self._place is None and not self._expand and self.opened.is_constant(number):
            known = self._filled(shape, self._memory(block)[offset : offset + dtype.itemsize].view(dtype))
            if not self._keep:
                return known
            self._known[key] = known
            return known.detach()
        storage = self._storage(block)
        made = torch.empty(0, dtype=dtype, device=storage.device)
        made.set_(storage, offset // dtype.itemsize, tuple(shape), tuple(stride))
        return CsxTensor(made) if self._to_csx else made

    def _storage(self, block: int) -> torch.UntypedStorage:
        storage = self._blocks.get(block)
        if storage is None:
            storage = self._memory(block).untyped_storage()
            if self._place is not None:
                storage = self._place(storage)
            if self._keep:
                self._blocks[block] = storage
        return storage

    def _filled(self, shape: list[int], element: torch.Tensor) -> torch.Tensor:
        """A tensor of `element` everywhere, which takes no memory until it is written."""
        value = _number(element)
        if value is None:
            whole = element.expand(shape).clone(memory_format=torch.contiguous_format)
            return CsxTensor(whole) if self._to_csx else whole
        if not self._to_csx:
            return constant(tuple(shape), value, element.dtype)
        with lazy.recording():
            return torch.full(tuple(shape), value, dtype=element.dtype, device=CSX)


def _number(element: torch.Tensor) -> Any:
    """The Python number that is `element`, bit for bit; None when there is none."""
    try:
        value = element.item()
        filled = torch.full((1,), value, dtype=element.dtype)
    except (RuntimeError, NotImplementedError):  # a dtype that cannot be filled, or that no number is of
        return None
    is_same = filled.view(torch.uint8).tolist() == element.view(torch.uint8).tolist()  # NaNs have many forms
    return value if is_same else None
