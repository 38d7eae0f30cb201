"""Tells a person that a compile is going on: a line that counts the seconds on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

logger = logging.getLogger("cstorch.compile")


class CompileProgress:
    """Context manager around one compile.

    Args:
        what: What is compiled, for example "training_step: 312 operations".
        stream: Where the line goes; sys.stderr by default. Nothing is written unless it is a terminal.
        clock: Seconds, for the tests.
    """

    def __init__(self, what: str, stream: Any = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self.what = what
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self.seconds = 0.0

    def __enter__(self) -> CompileProgress:
        self._start = self._clock()
        logger.info("compiling %s", self.what)
        if getattr(self._stream, "isatty", lambda: False)():
            self._thread = threading.Thread(target=self._tick, name="cstorch-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = self._clock() - self._start
        self._done.set()
        if self._thread is not None:
            self._thread.join()
            self._write("\r\x1b[2K")
        if error is None:
            logger.info("compiled %s in %.1f s", self.what, self.seconds)

    def _tick(self) -> None:
        while not self._done.wait(0.2):
            self._write(f"\r\x1b[2Kcompiling {self.what} ... {self._clock() - self._start:.0f} s")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
