"""Checksums by a second thread, while the first one writes: as many as it has computed when their turn comes.

On a machine with a core to spare it is soon far ahead, and the file takes no longer than its bytes do. On a busy one
the writer computes most of them itself, just before it writes, so that the system's copy finds the bytes in the cache.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from cstorch.storage.index import digest

_LEAST = 32 << 20  # bytes for which a thread is worth its start


class AheadChecksums:
    """Context manager around the writing of blocks.

    Args:
        buffers: The bytes of blocks by their numbers, in the order in which they will be written.
    """

    def __init__(self, buffers: Mapping[int, Any]) -> None:
        self._buffers = dict(buffers)
        self._found: dict[int, int] = {}
        self._claim = threading.Lock()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        if sum(map(len, buffers.values())) >= _LEAST and len(os.sched_getaffinity(0)) > 1:
            self._thread = threading.Thread(target=self._run, args=(list(buffers),), name="cstorch-checksums")

    def __enter__(self) -> AheadChecksums:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._claim:
            self._buffers.clear()
        if self._thread is not None:
            self._thread.join()

    def leaves(self, number: int) -> bool:
        """Whether the checksum of a block is left to the caller; otherwise `found` will have it."""
        with self._claim:
            self._buffers.pop(number, None)
            return number not in self._found

    def found(self) -> dict[int, int]:
        """The checksums that were not left to the caller; waits for the last. Every block was asked about before."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found

    def _run(self, numbers: list[int]) -> None:
        try:
            for number in numbers:
                with self._claim:
                    buffer = self._buffers.pop(number, None)
                    if buffer is None:
                        continue
                    self._found[number] = 0  # ours from now on
                self._found[number] = digest(buffer)
        except BaseException as error:
            self._error = error
