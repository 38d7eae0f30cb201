"""Bytes of a checkpoint that nobody has read, to be copied to another one from file to file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_STEP = 1 << 22
_CANNOT = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class Source:
    """A block of an open checkpoint.

    Attributes:
        file: The descriptor.
        at: Where in the file the block begins.
        size: How many bytes it has.
        digest: Their checksum, as it was when they were written: damage since then is found by who reads the copy.
        check: Raises a CheckpointError if they are damaged.
        keep: What keeps the descriptor open.
    """

    file: int
    at: int
    size: int
    digest: int
    check: Callable[[], None]
    keep: Any

    def copy(self, file: int, at: int) -> None:
        """Copy the bytes to `at` in `file`, within the system where it can.

        Raises:
            CheckpointError: the file is shorter than it was, and the block damaged so.
            OSError: they cannot be written.
        """
        done, copy = 0, self._within
        while done < self.size:
            try:
                count = copy(file, at, done)
            except OSError as error:
                if error.errno not in _CANNOT or copy == self._through:
                    raise
                copy = self._through
                continue
            if count == 0:
                self.check()
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            done += count

    def _within(self, file: int, at: int, done: int) -> int:
        return os.copy_file_range(self.file, file, self.size - done, self.at + done, at + done)

    def _through(self, file: int, at: int, done: int) -> int:
        data = os.pread(self.file, min(_STEP, self.size - done), self.at + done)
        return os.pwrite(file, data, at + done)
