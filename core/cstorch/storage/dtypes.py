"""The dtypes that a checkpoint holds: their numbers in the index and their HDF5 datatypes.

An HDF5 datatype message (version 1) is a class and version byte, 24 bits of flags, the size in bytes, then what the
class needs; see "Datatype Message" in the HDF5 file format specification.
"""

from __future__ import annotations

import struct

import torch

_LOWEST_PADDING_FREE = 0x20  # the highest bit of the mantissa is implied and not stored


def _float(size: int, exponent: int, mantissa: int, bias: int) -> bytes:
    sign = size * 8 - 1
    head = struct.pack("<B3BI", 0x11, _LOWEST_PADDING_FREE, sign, 0, size)
    return head + struct.pack("<2H4BI", 0, size * 8, mantissa, exponent, 0, mantissa, bias)


def _int(size: int, signed: bool) -> bytes:
    return struct.pack("<B3BI2H", 0x10, 8 * signed, 0, 0, size, 0, size * 8)


def _padded(name: bytes) -> bytes:
    return name.ljust(len(name) // 8 * 8 + 8, b"\0")


def _complex(part: bytes, size: int) -> bytes:
    """As h5py writes complex numbers: a compound of `r` and `i`."""
    members = b""
    for name, at in ((b"r", 0), (b"i", size)):
        members += _padded(name) + struct.pack("<IB3x2I4I", at, 0, 0, 0, 0, 0, 0, 0) + part
    return struct.pack("<B3BI", 0x16, 2, 0, 0, 2 * size) + members


_BOOL = (  # as h5py writes bools: an enumeration of FALSE and TRUE
    struct.pack("<B3BI", 0x18, 2, 0, 0, 1) + _int(1, True) + _padded(b"FALSE") + _padded(b"TRUE") + b"\0\1"
)
_BITS = _int(1, False)  # HDF5 has no such numbers (no infinities, other zeros): readers see their bits

_HALF, _SINGLE, _DOUBLE = _float(2, 5, 10, 15), _float(4, 8, 23, 127), _float(8, 11, 52, 1023)

_TABLE: tuple[tuple[str, bytes], ...] = (  # a dtype's place is its number in files: only ever append
    ("float64", _DOUBLE),
    ("float32", _SINGLE),
    ("float16", _HALF),
    ("bfloat16", _float(2, 8, 7, 127)),
    ("int64", _int(8, True)),
    ("int32", _int(4, True)),
    ("int16", _int(2, True)),
    ("int8", _int(1, True)),
    ("uint8", _int(1, False)),
    ("bool", _BOOL),
    ("complex128", _complex(_DOUBLE, 8)),
    ("complex64", _complex(_SINGLE, 4)),
    ("complex32", _complex(_HALF, 2)),
    ("uint64", _int(8, False)),
    ("uint32", _int(4, False)),
    ("uint16", _int(2, False)),
    ("float8_e5m2", _float(1, 5, 2, 15)),
    ("float8_e4m3fn", _BITS),
    ("float8_e5m2fnuz", _BITS),
    ("float8_e4m3fnuz", _BITS),
    ("float8_e8m0fnu", _BITS),
    ("float4_e2m1fn_x2", _BITS),
)

DTYPES: tuple[torch.dtype, ...] = tuple(getattr(torch, name) for name, _ in _TABLE)
"""The dtype of each number."""

NUMBERS: dict[torch.dtype, int] = {dtype: number for number, dtype in enumerate(DTYPES)}
"""The number of each dtype that can be stored."""

DATATYPES: tuple[bytes, ...] = tuple(datatype for _, datatype in _TABLE)
"""The HDF5 datatype message of each number."""
