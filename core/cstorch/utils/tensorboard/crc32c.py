"""CRC-32C of many messages at once: event files guard each record with it, and Python has no fast one."""

from __future__ import annotations

from typing import Any

import numpy as np

_BLOCK = 256  # longer messages are cut into blocks of so many bytes, which advance side by side
_AT_ONCE = 1 << 14  # so many messages stay in the processor's cache


def _byte_table() -> Any:
    table: Any = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ np.where(table & 1, np.uint32(0x82F63B78), np.uint32(0))
    return table


_TABLE = _byte_table()


def _advance(states: Any, rows: Any) -> Any:
    """The states after one row of bytes each."""
    for column in np.ascontiguousarray(rows.T):
        states = _TABLE.take(states.astype(np.uint8) ^ column) ^ (states >> 8)
    return states


def _after_zeros() -> Any:
    """For each byte of a state, at each of its values: the state after a block of zeros."""
    states = (np.arange(256, dtype=np.uint32)[None, :] << np.arange(0, 32, 8, dtype=np.uint32)[:, None]).ravel()
    return _advance(states, np.zeros((len(states), _BLOCK), np.uint8)).reshape(4, 256)


_ZEROS = _after_zeros()


def _shift(states: Any, zeros: Any) -> Any:
    moved = zeros[0].take(states & 0xFF)
    for byte in (1, 2, 3):
        moved = moved ^ zeros[byte].take((states >> (8 * byte)) & 0xFF)
    return moved


def crc32c(rows: Any) -> Any:
    """The checksum of each row.

    Args:
        rows: A uint8 array of shape (messages, bytes).

    Returns:
        A uint32 array.
    """
    count, width = rows.shape
    if count > _AT_ONCE:
        return np.concatenate([crc32c(rows[at : at + _AT_ONCE]) for at in range(0, count, _AT_ONCE)])
    head = width % _BLOCK
    states = _advance(np.full(count, 0xFFFFFFFF, np.uint32), rows[:, :head])[:, None]
    if width > head:
        blocks = rows[:, head:].reshape(-1, _BLOCK)
        states = np.hstack([states, _advance(np.zeros(len(blocks), np.uint32), blocks).reshape(count, -1)])
    zeros = _ZEROS
    while states.shape[1] > 1:  # neighbours join: the left one moves over the bytes of the right one
        if states.shape[1] % 2:
            states = np.hstack([np.zeros((count, 1), np.uint32), states])
        states = _shift(states[:, 0::2], zeros) ^ states[:, 1::2]
        zeros = _shift(zeros, zeros)
    return ~states[:, 0]


def masked(checksums: Any) -> Any:
    """Checksums as event files hold them."""
    return ((checksums >> 15) | (checksums << 17)) + np.uint32(0xA282EAD8)
