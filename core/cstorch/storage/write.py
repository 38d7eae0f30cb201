"""Lays a checkpoint out, and writes it: one file that is HDF5, a torch checkpoint and what `cstorch.load` reads.

    0        user block of HDF5: the first zip record's header with the locator in it, and the record's one byte
    512      HDF5 metadata
    ...      blocks, each behind its zip header: aligned to 64 bytes, from 1 MiB on to 4096
    ...      the index, as HDF5 datasets
    ...      data.pkl and the other small zip records, the zip directory

Where everything goes is known before anything is written, so the file is allocated whole, the blocks are hashed and
written in large calls, and the index and the metadata come last.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from xxhash import xxh3_64

from cstorch.storage.archive import SMALLEST_GAP, directory, local_header
from cstorch.storage.block import SMALL, Block
from cstorch.storage.checksums import AheadChecksums
from cstorch.storage.collections_off import no_collections
from cstorch.storage.data_pkl import data_pkl
from cstorch.storage.dtypes import DATATYPES, NUMBERS
from cstorch.storage.gather import Entry, Gathering
from cstorch.storage.hdf5 import USER_BLOCK, Dataset, Metadata
from cstorch.storage.index import SECTIONS, Index, Locator, digest, padded
from cstorch.storage.lazy_dict import settled
from cstorch.storage.tree import Encoder, Path

_PAGE, _LARGE, _ALIGNMENT = 4096, 1 << 20, 64
_BATCH = 8 << 20  # what small blocks are gathered to before they are written
_PIECES = 8192
_RECORDS = ((b"archive/byteorder", b"little"), (b"archive/version", b"3\n"))
_FORMAT_RECORD = (b"archive/.format_version", b"1")
_UINT8, _INT64, _UINT64 = (DATATYPES[NUMBERS[dtype]] for dtype in (torch.uint8, torch.int64, torch.uint64))


def record_name(number: int) -> bytes:
    """Of the zip record that a block is."""
    return b"archive/data/%d" % number


def layout(position: int, sizes: list[int]) -> tuple[list[int], list[int], int]:
    """Where the zip headers and the bytes of blocks of `sizes` go, from `position` on; and where they end."""
    headers, data = [], []
    name = len(record_name(0)) - 1
    for i, size in enumerate(sizes):
        alignment = _PAGE if size >= _LARGE else _ALIGNMENT
        headers.append(position)
        at = position + SMALLEST_GAP + name + len(str(i))
        at = -(-at // alignment) * alignment
        data.append(at)
        position = at + size
    return headers, data, position


class Plan:
    """All that a file will hold, as `state` is now; the contents of its tensors are read when it is written.

    Args:
        state: The state dict.
        pickle_objects: Whether objects without a safe form are pickled rather than refused.

    Attributes:
        size: Of the file.
        pickled: The dotted paths of pickled objects.
    """

    def __init__(self, state: Any, pickle_objects: bool = False) -> None:
        self.pickled: list[str] = []
        with no_collections():
            self._make(state, pickle_objects)

    def _make(self, state: Any, pickle_objects: bool) -> None:
        state, sources = settled(state)
        self.gathering = Gathering(sources)
        encoder = Encoder(self.gathering.add, self._pickle if pickle_objects else None)
        tree = json.dumps(encoder.encode(state), separators=(",", ":"), allow_nan=False)
        self._tree = tree.encode()
        self.gathering.arrange()
        self._pkl = data_pkl(state, self.gathering)
        self.blocks = self.gathering.blocks
        self._describe()
        self._place()

    def _pickle(self, value: Any, path: Path) -> None:
        self.pickled.append(".".join(map(str, path)))

    def _describe(self) -> None:
        """The HDF5 datasets: one for each tensor, one for each section of the index."""
        entries = self.gathering.entries
        numbers = {id(block): i for i, block in enumerate(self.blocks)}
        rows = np.zeros((len(entries), 5), "<u8")
        geometry: list[int] = []
        columns: list[tuple[int, ...]] = []
        for e in entries:
            columns.append((NUMBERS[e.like.dtype], len(e.shape), len(geometry), numbers[id(e.block)], e.offset))
            geometry += e.shape
            geometry += e.stride
        if columns:
            rows[:] = columns
        names = b"".join([e.name + b"\0" for e in entries])
        blank = np.zeros((len(self.blocks), 3), "<u8")
        self._index = Index(blank, rows, np.array(geometry, "<i8"), names, self._tree)
        self._source = [numbers[id(e.copy or e.block)] for e in entries]
        datasets = [_dataset(e) for e in entries]
        datasets += [replace(datasets[number], name=name) for name, number in self.gathering.aliases]
        shapes: list[tuple[bytes, tuple[int, ...]]] = [
            (_UINT64, blank.shape),
            (_UINT64, rows.shape),
            (_INT64, (len(geometry),)),
            (_UINT8, (len(names),)),
            (_UINT8, (len(self._tree),)),
        ]
        self._lengths = [len(s) for s in self._index.sections()]
        for section, (kind, shape), length in zip(SECTIONS, shapes, self._lengths, strict=True):
            datasets.append(Dataset(b"__cstorch__." + section.encode(), kind, shape, length))
        self._metadata = Metadata(datasets)

    def _place(self) -> None:
        """Where everything goes."""
        self.metadata_end = USER_BLOCK + self._metadata.size
        sizes = [b.nbytes for b in self.blocks]
        self.header_at, self.data_at, end = layout(self.metadata_end, sizes)
        self.index_at = padded(end)
        self.tail_at = self.index_at + sum(map(padded, self._lengths))
        head = _FORMAT_RECORD[0]
        records = [(head, 0, 1, zlib.crc32(_FORMAT_RECORD[1]))]
        self._tail = b""
        for name, data in ((b"archive/data.pkl", self._pkl), *_RECORDS):
            at = self.tail_at + len(self._tail)
            crc = zlib.crc32(data)
            records.append((name, at, len(data), crc))
            self._tail += local_header(name, SMALLEST_GAP + len(name), len(data), crc) + data
        records += [(record_name(i), at, sizes[i], 0) for i, at in enumerate(self.header_at)]
        self._tail += directory(records, self.tail_at + len(self._tail))
        self.size = self.tail_at + len(self._tail)

    def write(self, file: int, progress: Callable[[int], None] | None = None, ahead: bool = False) -> None:
        """Write all of it to an empty file.

        Args:
            file: Its descriptor.
            progress: Called with how many bytes have been written so far.
            ahead: Whether a second thread may compute checksums meanwhile.
        """
        _allocate(file, self.size)
        buffers = {i: b.buffer() for i, b in enumerate(self.blocks) if b.is_plain} if ahead else {}
        with AheadChecksums(buffers) as checksums:
            hashes = self._write_blocks(file, checksums, progress)
        self._index.blocks[:, 0] = self.data_at
        self._index.blocks[:, 1] = [b.nbytes for b in self.blocks]
        self._index.blocks[:, 2] = hashes
        sections = self._index.sections()
        index = b"".join([s.ljust(padded(len(s)), b"\0") for s in sections])
        _write_all(file, [index, self._tail], self.index_at)
        metadata = self._metadata.encode(self._addresses(sections), self.size)
        name, content = _FORMAT_RECORD
        head = bytearray(local_header(name, USER_BLOCK - 1, 1, zlib.crc32(content)) + content)
        found = (digest(metadata), digest(index), digest(self._tail))
        lengths = tuple(self._lengths)
        Locator(self.size, self.metadata_end, self.index_at, lengths, self.tail_at, found).write(head)
        _write_all(file, [bytes(head), metadata], 0)

    def _addresses(self, sections: list[bytes]) -> list[int | None]:
        addresses: list[int | None] = []
        for e, source in zip(self.gathering.entries, self._source, strict=True):
            has_bytes = self.blocks[source].nbytes > 0 and not e.is_constant
            addresses.append(self.data_at[source] + (0 if e.copy else e.offset) if has_bytes else None)
        addresses += [addresses[number] for _, number in self.gathering.aliases]
        at = self.index_at
        for section in sections:
            addresses.append(at if section else None)
            at += padded(len(section))
        return addresses

    def _write_blocks(self, file: int, checksums: AheadChecksums, progress: Callable[[int], None] | None) -> list[int]:
        """Write the blocks, each behind its header; their checksums."""
        hashes: list[int] = []
        batch: list[Any] = []
        start, size, last = self.metadata_end, 0, len(self.blocks) - 1
        for i, block in enumerate(self.blocks):
            gap = self.data_at[i] - self.header_at[i]
            header = local_header(record_name(i), gap, block.nbytes)
            size += gap + block.nbytes
            if block.nbytes <= SMALL:
                data = block.small()
                hashes.append(digest(data))
                batch += [header, data]
                if size >= _BATCH or len(batch) >= _PIECES or i == last:
                    _write_all(file, [b"".join(batch)], start)
                    start, size, batch = start + size, 0, []
            else:
                batch.append(header)
                is_left = checksums.leaves(i)
                hashes.append(_write_large(file, block, b"".join(batch), start, is_left))
                start, size, batch = start + size, 0, []
            if progress is not None:
                progress(start)
        for i, checksum in checksums.found().items():
            hashes[i] = checksum
        return hashes


def _write_large(file: int, block: Block, before: bytes, at: int, is_hashed: bool) -> int:
    """Write `before` and then a block; its checksum if `is_hashed`."""
    if block.source is not None:
        _write_all(file, [before], at)
        block.source.copy(file, at + len(before))
        return block.source.digest
    found = xxh3_64()
    for piece in block.pieces():
        if is_hashed:
            found.update(piece)
        _write_all(file, [before, piece], at)
        at += len(before) + len(piece)
        before = b""
    return found.intdigest()


def _dataset(e: Entry) -> Dataset:
    number = NUMBERS[e.like.dtype]
    size = e.like.dtype.itemsize
    fill = None
    nbytes = (e.copy or e.block).nbytes if e.copy or not e.is_constant else e.like.numel() * size
    if e.is_constant:
        fill = e.block.small()[e.offset : e.offset + size]
    elif e.copy is None:
        nbytes = e.like.numel() * size
    return Dataset(e.name, DATATYPES[number], e.shape, nbytes, fill)


def _allocate(file: int, size: int) -> None:
    """Reserve the space: faster than growing, and a full disk shows before a byte is written."""
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        os.ftruncate(file, size)


def _write_all(file: int, buffers: list[Any], at: int) -> None:
    """Write `buffers` one after another from `at` on, however many calls it takes."""
    left = [memoryview(b) for b in buffers if len(b)]
    while left:
        done = os.pwritev(file, left, at)
        at += done
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if done:
            left[0] = left[0][done:]
