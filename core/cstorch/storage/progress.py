"""Tells a person at a terminal how far a save or a load has come, once it has taken a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from cstorch import progress_line

_AFTER, _EVERY = 1.0, 0.2


class ByteProgress:
    """Context manager around one save or load.

    Args:
        what: What goes on, for example "saving a.ckpt".
        total: How many bytes there are.
        stream: Where the line goes; sys.stderr by default. Nothing is written unless it is a terminal.
        clock: Seconds, for the tests.
    """

    def __init__(
        self, what: str, total: int, stream: Any = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._what, self._total, self._clock = what, max(total, 1), clock
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = getattr(self._stream, "isatty", lambda: False)()
        self._next = clock() + _AFTER
        self._is_shown = False

    def __enter__(self) -> ByteProgress:
        return self

    def __call__(self, done: int) -> None:
        """So many bytes are done."""
        if self._is_terminal and (now := self._clock()) >= self._next:
            if not self._is_shown:
                progress_line.active.append(self)
            self._next, self._is_shown = now + _EVERY, True
            bar = progress_line.bar(done / self._total)
            self._write(f"\r\x1b[2K{self._what} {bar} of {self._total / 2**30:.1f} GiB")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            progress_line.active.remove(self)
            self._write("\r\x1b[2K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
