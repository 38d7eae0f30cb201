"""Reads the scalars of many events at once: those of one length differ in a few fixed places only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

_TIME, _STEP, _SUMMARY, _VALUE, _TAG, _NUMBER = 0x09, 0x10, 0x2A, 0x0A, 0x0A, 0x15
_LONGEST_STEP = 5  # bytes: steps up to 2**35
_HASH = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Scalars:
    """Scalars of one tag.

    Attributes:
        tag: The tag.
        positions: Which of the rows they are.
        wall_times: Seconds since the epoch.
        steps: The steps.
        values: The values.
    """

    tag: str
    positions: Any
    wall_times: Any
    steps: Any
    values: Any


def scalars_of(rows: Any) -> Iterator[Scalars]:
    """The scalars among events of one length that hold nothing but a time, a step, a tag and a float.

    Args:
        rows: The events as protobuf messages, a uint8 array of shape (events, bytes).
    """
    for size in range(_LONGEST_STEP + 1):
        tag_at = 9 + (1 + size if size else 0) + 6
        if rows.shape[1] - tag_at <= 5 or rows.shape[1] - tag_at + 4 > 127:  # longer lengths take two bytes
            continue
        positions = np.flatnonzero(_has_layout(rows, size, tag_at))
        if len(positions):
            yield from _decoded(rows[positions], positions, size, tag_at)


def _has_layout(rows: Any, size: int, tag_at: int) -> Any:
    width = rows.shape[1]
    expected = {0: _TIME, width - 5: _NUMBER}
    for at, mark in ((tag_at - 6, _SUMMARY), (tag_at - 4, _VALUE), (tag_at - 2, _TAG)):
        end = width - 5 if at == tag_at - 2 else width
        expected[at], expected[at + 1] = mark, end - at - 2
    if size:
        expected[9] = _STEP
    right = np.ones(len(rows), bool)
    for at, byte in expected.items():
        right &= rows[:, at] == byte
    for byte in range(size):  # all bytes of a step but its last have their highest bit set
        right &= (rows[:, 10 + byte] >= 128) == (byte < size - 1)
    return right


def _decoded(rows: Any, positions: Any, size: int, tag_at: int) -> Iterator[Scalars]:
    wall_times = rows[:, 1:9].copy().view("<f8")[:, 0]
    values = rows[:, -4:].copy().view("<f4")[:, 0].astype(np.float64)
    steps = np.zeros(len(rows), np.int64)
    for byte in range(size):
        steps |= (rows[:, 10 + byte].astype(np.int64) & 0x7F) << (7 * byte)
    tags = rows[:, tag_at:-5]
    hashes = np.zeros(len(rows), np.uint64)
    for column in np.ascontiguousarray(tags.T):
        hashes = (hashes ^ column) * _HASH
    for where in _alike(hashes):
        first = tags[where[0]]
        same = (tags[where] == first).all(axis=1)
        chosen = where if same.all() else where[same]  # of two tags with one hash, the second is read one by one
        tag = first.tobytes().decode(errors="replace")
        yield Scalars(tag, positions[chosen], wall_times[chosen], steps[chosen], values[chosen])


def _alike(keys: Any) -> list[Any]:
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)
