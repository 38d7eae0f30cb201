"""An open checkpoint file: its index, and its blocks as memory, each checked when it is first touched.

The descriptor stays open, so the tensors stay what they were when the file is replaced or deleted meanwhile.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
from xxhash import xxh3_64

from cstorch.device.mapped import mapped
from cstorch.errors import CheckpointError
from cstorch.storage.dtypes import DTYPES
from cstorch.storage.hdf5 import USER_BLOCK
from cstorch.storage.index import DamagedError, Index, Locator, digest
from cstorch.storage.source import Source

SMALLEST_MAPPED = 1 << 18
"""Fewer bytes than this are read rather than mapped: mapping costs more, and a process may have 65,530 mappings."""

_STEP = 1 << 22


class OpenedCheckpoint:
    """An open file.

    Args:
        file: Its descriptor, which is closed with the last reference to this object.
        name: What errors call it.
        check: Whether blocks are compared with their checksums.

    Attributes:
        progress: Called with how many bytes of blocks have been read, after each block.

    Raises:
        CheckpointError: it is truncated or damaged.
    """

    def __init__(self, file: int, name: str, check: bool = True) -> None:
        self.file, self.name = file, name
        weakref.finalize(self, os.close, file)
        try:
            head = os.pread(file, USER_BLOCK, 0)
            if len(head) < USER_BLOCK:
                raise DamagedError(f"it is truncated: it ends after {len(head)} bytes")
            self.locator = Locator.read(head)
            self.check_size()
            data = os.pread(file, self.locator.index_size, self.locator.index_at)
            self.index = Index.read(data, self.locator)
        except DamagedError as error:
            raise self.damaged(str(error)) from None
        self._checks = check
        self.progress: Callable[[int], None] = lambda done: None
        self._read = 0
        self._checked = bytearray(self.blocks)
        self._names: list[str] = []

    def check_size(self) -> None:
        """Raise when the file is not as long as it was written."""
        size = os.fstat(self.file).st_size
        if size != self.locator.size:
            what = "truncated" if size < self.locator.size else "not what was written"
            raise DamagedError(f"it is {what}: it has {size} bytes instead of {self.locator.size}")

    def damaged(self, what: str) -> CheckpointError:
        """The error to raise for a part of the file that is damaged."""
        return CheckpointError(
            f"the checkpoint {self.name} cannot be read: {what}. Load an earlier checkpoint, or copy this one again "
            "from where it came."
        )

    def __len__(self) -> int:
        return len(self.index.tensors)

    @property
    def names(self) -> list[str]:
        """Of the tensors, as the HDF5 datasets are called."""
        if not self._names:
            self._names = self.index.names.decode(errors="surrogatepass").split("\0")[:-1]
        return self._names

    def geometry(self, number: int) -> tuple[torch.dtype, list[int], list[int], int, int]:
        """Dtype, shape, strides, block and offset in the block in bytes of a tensor."""
        kind, rank, at, block, offset = self.index.tensors[number].tolist()
        both = self.index.geometry[at : at + 2 * rank].tolist()
        return DTYPES[kind], both[:rank], both[rank:], block, offset

    def is_constant(self, number: int) -> bool:
        """Whether a tensor repeats one element over its whole shape."""
        _, shape, stride, _, _ = self.geometry(number)
        return math.prod(shape) > 1 and not any(stride)

    def block_size(self, block: int) -> int:
        """Of a block, in bytes."""
        return int(self.index.blocks[block, 1])

    @property
    def blocks(self) -> int:
        """How many there are."""
        return len(self.index.blocks)

    def read(self, block: int) -> torch.Tensor:
        """The bytes of a block, in memory of their own."""
        at, size, _ = self.index.blocks[block].tolist()
        made = torch.empty(size, dtype=torch.uint8)
        view = memoryview(made.numpy())  # type: ignore[arg-type]
        done = 0
        while done < size:
            count = os.preadv(self.file, [view[done:]], at + done)
            if count == 0:
                raise self.damaged(f"it is truncated: it ends at byte {at + done} of {self.locator.size}")
            done += count
        self._check_bytes(block, view)
        self._read += size
        self.progress(self._read)
        return made

    def map(self, block: int) -> torch.Tensor:
        """The bytes of a block: pages of the file, copied when they are written to; few bytes are read."""
        made = self.map_unread(block)
        self._check_bytes(block, made.numpy())
        return made

    def map_unread(self, block: int) -> torch.Tensor:
        """The same, not compared with the checksum unless they are few."""
        at, size, _ = self.index.blocks[block].tolist()
        if size < SMALLEST_MAPPED:
            return self.read(block)
        try:
            self.check_size()  # beyond the end of a file there are pages, and touching them ends the process
            memory, start = mapped(self.file, at, size)
        except DamagedError as error:
            raise self.damaged(str(error)) from None
        except OSError:  # no more mappings
            return self.read(block)
        return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start)

    def source(self, block: int) -> Source:
        """Where a block is, to copy it to another file."""
        at, size, expected = self.index.blocks[block].tolist()
        return Source(self.file, at, size, expected, lambda: self._check(block, self.is_right), self)

    def is_right(self, block: int) -> bool:
        """Whether a block is what was written, whatever was found before."""
        at, size, expected = self.index.blocks[block].tolist()
        found = xxh3_64()
        for start in range(0, size, _STEP):
            found.update(os.pread(self.file, min(_STEP, size - start), at + start))
        return bool(found.intdigest() == expected)

    def _check(self, block: int, is_right: Callable[[int], bool]) -> None:
        if self._checks and not self._checked[block]:
            if not is_right(block):
                raise self.damaged(f"{self.owners(block)} was damaged after it was written")
            self._checked[block] = 1

    def _check_bytes(self, block: int, data: Any) -> None:
        self._check(block, lambda block: bool(digest(data) == self.index.blocks[block, 2]))

    def owners(self, block: int) -> str:
        """The tensors that are views of a block, for an error."""
        names = [self.names[i] for i in (self.index.tensors[:, 3] == block).nonzero()[0]]
        return f"the tensor {' and '.join(map(repr, names))}" if names else "a tensor inside a pickled object"
