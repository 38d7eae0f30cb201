"""Event files: records with a length and two checksums, read from where the last reading ended."""

from __future__ import annotations

import os
import struct
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cstorch.utils.tensorboard.crc32c import crc32c, masked

_PIECE = 32 << 20
_length_at = struct.Struct("<Q").unpack_from


@dataclass(frozen=True)
class Records:
    """Whole records whose checksums are right.

    Attributes:
        data: The bytes that they lie in.
        starts: Where the contents of each begin.
        lengths: How long the contents are.
    """

    data: Any
    starts: Any
    lengths: Any

    def by_length(self) -> Iterator[tuple[Any, Any]]:
        """For each length: which records have it, and their contents as rows of bytes."""
        order = np.argsort(self.lengths, kind="stable")
        edges = np.flatnonzero(np.diff(self.lengths[order])) + 1
        for positions in np.split(order, edges):
            if len(positions):
                yield positions, _rows(self.data, self.starts[positions], int(self.lengths[positions[0]]))


class EventFile:
    """One event file.

    Args:
        path: Its path.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._offset = 0
        self._identity = os.stat(path).st_ino
        self._is_damaged = False

    @property
    def is_another(self) -> bool:
        """Whether somebody wrote the file anew: it is another one, or shorter than what was read of it."""
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return False
        return now.st_ino != self._identity or now.st_size < self._offset

    def read(self) -> Iterator[Records]:
        """What was added since the last reading; a record that is not whole yet is left for the next one.

        A record whose contents are damaged is left out, and a damaged length ends the file: both with a warning.
        """
        if self._is_damaged or os.path.getsize(self.path) <= self._offset:
            return
        with open(self.path, "rb") as file:
            size = _PIECE
            while True:
                file.seek(self._offset)
                data = file.read(size)
                records, used = self._records(data)
                self._offset += used
                if len(records.starts):
                    yield records
                if self._is_damaged or len(data) < size:
                    return
                size = _PIECE if used else size * 2  # a record that is longer than a piece

    def _records(self, data: bytes) -> tuple[Records, int]:
        bytes_ = np.frombuffer(data, np.uint8)
        heads, at = [], 0
        end = len(data)
        while at + 12 <= end:
            after = at + 16 + _length_at(data, at)[0]
            heads.append(at)
            if after > end:  # not whole yet, unless its length is damaged
                break
            at = after
        starts = np.array(heads, np.int64) + 12
        wrong = np.flatnonzero(~_holds(bytes_, starts - 12, 8)) if heads else starts
        if len(wrong):
            starts = starts[: wrong[0]]
            at = heads[wrong[0]]
            self._is_damaged = True
            self._warn(at, "the length of the record is damaged, so what follows it is not read")
        elif heads and heads[-1] == at:
            starts = starts[:-1]
        lengths = np.diff(np.append(starts, at + 12)) - 16
        return self._sound(Records(bytes_, starts, lengths)), at

    def _sound(self, records: Records) -> Records:
        right = np.ones(len(records.starts), bool)
        for positions, rows in records.by_length():
            right[positions] = masked(crc32c(rows)) == _words(records.data, records.starts[positions] + rows.shape[1])
        if right.all():
            return records
        for start in records.starts[~right]:
            self._warn(int(start) - 12, "the record does not agree with its checksum and is left out")
        return Records(records.data, records.starts[right], records.lengths[right])

    def _warn(self, at: int, what: str) -> None:
        warnings.warn(
            f"the event file {self.path} is damaged at byte {self._offset + at}: {what}. Copy the file again, "
            "if it was written in another place.",
            stacklevel=2,
        )


def _rows(data: Any, starts: Any, width: int) -> Any:
    """The `width` bytes from each start on."""
    if width == 0:
        return np.empty((len(starts), 0), np.uint8)
    return np.lib.stride_tricks.sliding_window_view(data, width)[starts]


def _words(data: Any, starts: Any) -> Any:
    return _rows(data, starts, 4).view("<u4")[:, 0]


def _holds(data: Any, starts: Any, width: int) -> Any:
    """Whether the checksum behind so many bytes is theirs."""
    return masked(crc32c(_rows(data, starts, width))) == _words(data, starts + width)
