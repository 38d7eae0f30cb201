"""Tells a person that a compile is going on: a line that counts the seconds on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from cstorch.progress_line import ProgressLine

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
        self._clock = clock
        self._line = ProgressLine(lambda: f"compiling {what} ... {clock() - self._start:.0f} s", stream)
        self.seconds = 0.0

    def __enter__(self) -> CompileProgress:
        self._start = self._clock()
        logger.info("compiling %s", self.what)
        self._line.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = self._clock() - self._start
        self._line.__exit__(kind, error, trace)
        if error is None:
            logger.info("compiled %s in %.1f s", self.what, self.seconds)
