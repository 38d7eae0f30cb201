"""Checks every byte of a checkpoint against what was written."""

from __future__ import annotations

import os
from typing import Any

from cstorch.storage.archive import local_header
from cstorch.storage.hdf5 import USER_BLOCK
from cstorch.storage.index import digest, padded
from cstorch.storage.load import opened_checkpoint
from cstorch.storage.opened import OpenedCheckpoint
from cstorch.storage.write import layout, record_name

_STEP = 1 << 24


def verify(checkpoint_file: str | os.PathLike[str]) -> int:
    """Check a file of `cstorch.save` against its checksums, all of it.

    Args:
        checkpoint_file: Its path.

    Returns:
        How many tensors it has.

    Raises:
        CheckpointError: it is damaged; every tensor whose bytes changed is named.
        CheckpointNotFoundError: it does not exist.
    """
    opened = opened_checkpoint(checkpoint_file)
    damage = [what for what, is_right in _checks(opened) if not is_right]
    if damage:
        raise opened.damaged("; ".join(damage))
    return len(opened)


def _checks(opened: OpenedCheckpoint) -> Any:
    """What is checked, in words for when it is damaged, and whether it is right."""
    file, locator = opened.file, opened.locator
    metadata, _, tail = locator.hashes
    yield "its HDF5 metadata are damaged", digest(_read(file, USER_BLOCK, locator.metadata_end)) == metadata
    yield "its zip directory or data.pkl is damaged", digest(_read(file, locator.tail_at, locator.size)) == tail
    sizes = [opened.block_size(i) for i in range(opened.blocks)]
    headers, data, end = layout(locator.metadata_end, sizes)
    for i, size in enumerate(sizes):
        gap = data[i] - headers[i]
        yield f"zip header {i} is damaged", _read(file, headers[i], data[i]) == local_header(record_name(i), gap, size)
        yield f"{opened.owners(i)} was damaged after it was written", opened.is_right(i)
    yield "the padding before its index is damaged", not any(_read(file, end, padded(end)))


def _read(file: int, start: int, end: int) -> bytes:
    parts = []
    while start < end and (part := os.pread(file, min(end - start, _STEP), start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)
