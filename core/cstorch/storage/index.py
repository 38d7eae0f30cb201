"""What `cstorch.load` reads of a checkpoint: a locator in the HDF5 user block, and the index that it points at.

The locator says how long the file is, where the index, the HDF5 metadata and the zip's end are, and what they hash
to. The index is four columns of numbers and a text, each also an HDF5 dataset of its own name:

- `blocks`: position in the file, bytes and xxh3 of every run of bytes that tensors are views of;
- `tensors`: dtype number, rank, place in `geometry`, block, and offset in it in bytes, of every tensor;
- `geometry`: the shape and then the strides of every tensor;
- `names`: of the tensors, as the HDF5 datasets are called, ended by NUL;
- `tree`: the state dict as typed JSON (`tree.py`), with the numbers of the tensors.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from cstorch.storage.hdf5 import USER_BLOCK

VERSION = 1
MAGIC = b"\x93cstorch"
LOCATOR = 64
"""Where in the user block the locator is: inside the extra field of the first zip record's header."""

SECTIONS = ("blocks", "tensors", "geometry", "names", "tree")

_FORMAT = "<8sI4x13QQ"
_HASH_AT = LOCATOR + struct.calcsize(_FORMAT) - 8


class DamagedError(ValueError):
    """Bytes of a checkpoint are not what was written; says which."""


def digest(data: bytes | bytearray | memoryview) -> int:
    """The checksum of all parts of a checkpoint: xxh3 of 64 bits."""
    return int(xxh3_64_intdigest(data))


@dataclass(frozen=True)
class Locator:
    """Where the parts of a file are, and their checksums.

    Attributes:
        size: Of the file.
        metadata_end: The HDF5 metadata are from the end of the user block to here.
        index_at: Where the sections of the index are, one after another, each padded to 8 bytes.
        lengths: Of the sections.
        tail_at: The last zip records and the directory are from here to the end.
        hashes: Of HDF5 metadata, index and tail.
    """

    size: int
    metadata_end: int
    index_at: int
    lengths: tuple[int, ...]
    tail_at: int
    hashes: tuple[int, int, int]

    def write(self, head: bytearray) -> None:
        """Put the locator into `head`, the user block; everything else in it is there already."""
        numbers = (self.size, self.metadata_end, self.index_at, *self.lengths, self.tail_at, *self.hashes, 0)
        struct.pack_into(_FORMAT, head, LOCATOR, MAGIC, VERSION, *numbers, 0)
        struct.pack_into("<Q", head, _HASH_AT, digest(head))

    @staticmethod
    def read(head: bytes) -> Locator:
        """The locator in the first bytes of a file.

        Raises:
            DamagedError: they changed since they were written, or are of a later version.
        """
        magic, version, *numbers, _, found = struct.unpack_from(_FORMAT, head, LOCATOR)
        if magic != MAGIC:
            raise DamagedError("its first 512 bytes are damaged")
        plain = bytearray(head[:USER_BLOCK])
        plain[_HASH_AT : _HASH_AT + 8] = bytes(8)
        if digest(plain) != found:
            raise DamagedError("its first 512 bytes are damaged")
        if version != VERSION:
            raise DamagedError(f"it has version {version} of the format, and this cstorch reads version {VERSION}")
        size, metadata_end, index_at, *lengths, tail_at, a, b, c = numbers
        return Locator(size, metadata_end, index_at, tuple(lengths), tail_at, (a, b, c))

    @property
    def index_size(self) -> int:
        """Bytes of all sections."""
        return sum(padded(n) for n in self.lengths)


def padded(length: int) -> int:
    """The next multiple of 8."""
    return -(-length // 8) * 8


def is_ours(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a checkpoint of this format, damaged or not."""
    return head[LOCATOR : LOCATOR + len(MAGIC)] == MAGIC or (
        head[:2] == b"PK" and head[USER_BLOCK : USER_BLOCK + 4] == b"\x89HDF"
    )


@dataclass(frozen=True)
class Index:
    """The columns of the index; see the top of the module."""

    blocks: npt.NDArray[np.uint64]
    tensors: npt.NDArray[np.uint64]
    geometry: npt.NDArray[np.int64]
    names: bytes
    tree: bytes

    def sections(self) -> list[bytes]:
        """Their bytes in order, unpadded."""
        return [self.blocks.tobytes(), self.tensors.tobytes(), self.geometry.tobytes(), self.names, self.tree]

    @staticmethod
    def read(data: bytes, locator: Locator) -> Index:
        """The index out of the bytes that `locator` points at.

        Raises:
            DamagedError: they changed since they were written.
        """
        if len(data) != locator.index_size or digest(data) != locator.hashes[1]:
            raise DamagedError("its index is damaged")
        parts, at = [], 0
        for length in locator.lengths:
            parts.append(data[at : at + length])
            at += padded(length)
        return Index(
            np.frombuffer(parts[0], "<u8").reshape(-1, 3),
            np.frombuffer(parts[1], "<u8").reshape(-1, 5),
            np.frombuffer(parts[2], "<i8"),
            parts[3],
            parts[4],
        )
