"""The zip side of a checkpoint: the headers that make records out of bytes which lie where HDF5 wants them.

A record's local header may end up to 65,535 bytes before its data, as its "extra" field spans the rest; so it fits
into the gap that aligns a dataset. Sizes beyond 4 GiB use the zip64 extra field (APPNOTE 4.5.3). The records are those
of `torch.save`; their checksums are 0 where they would cost more than the write, which PyTorch does not look at.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_LOCAL, _CENTRAL, _END, _END64, _LOCATOR64 = 0x04034B50, 0x02014B50, 0x06054B50, 0x06064B50, 0x07064B50
_VERSION = 45  # of the format: the first with zip64
_WIDE = 0xFFFFFFFF
_PADDING = int.from_bytes(b"FB", "little")  # the extra field that PyTorch pads with

SMALLEST_GAP = 30 + 20 + 4
"""What a local header takes, besides the record's name."""


def local_header(name: bytes, gap: int, size: int, crc: int = 0) -> bytes:
    """The header of a record of `size` bytes, `gap` bytes long: the data begin behind it."""
    extra = b""
    narrow = size
    if size >= _WIDE:
        extra, narrow = struct.pack("<HHQQ", 1, 16, size, size), _WIDE
    rest = gap - 30 - len(name) - len(extra) - 4
    extra += struct.pack("<HH", _PADDING, rest) + bytes(rest)
    head = struct.pack(
        "<IHHHHHIIIHH", _LOCAL, _VERSION, 0, 0, 0, 0, crc, narrow, narrow, len(name), gap - 30 - len(name)
    )
    return head + name + extra


def _central_header(name: bytes, at: int, size: int, crc: int) -> bytes:
    extra = b""
    if max(size, at) >= _WIDE:
        extra, size, at = struct.pack("<HHQQQ", 1, 24, size, size, at), _WIDE, _WIDE
    head = (_CENTRAL, _VERSION, _VERSION, 0, 0, 0, 0, crc, size, size, len(name), len(extra), 0, 0, 0, 0, at)
    return struct.pack("<IHHHHHHIIIHHHHHII", *head) + name + extra


def directory(records: Sequence[tuple[bytes, int, int, int]], at: int) -> bytes:
    """The central directory, which ends the file.

    Args:
        records: Name, position of the local header, size and crc of each.
        at: Where in the file the directory will be.
    """
    body = b"".join([_central_header(*record) for record in records])
    count, size = len(records), len(body)
    end = b""
    if count >= 0xFFFF or at >= _WIDE:
        end = struct.pack("<IQHHIIQQQQ", _END64, 44, _VERSION, _VERSION, 0, 0, count, count, size, at)
        end += struct.pack("<IIQI", _LOCATOR64, 0, at + size, 1)
    short = min(count, 0xFFFF)
    return body + end + struct.pack("<IHHHHIIH", _END, 0, 0, short, short, size, min(at, _WIDE), 0)
