"""A line on a terminal that is written anew while something goes on, and wiped out when it ends."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

logger = logging.getLogger("cstorch.progress")

active: list[Any] = []
"""What writes such lines now; the last one has the terminal."""


def bar(part: float) -> str:
    """A part of a whole, from 0 to 1, as a bar and in percent."""
    part = min(part, 1.0)
    return f"[{'#' * int(part * 30):30}] {part:4.0%}"


class ProgressLine:
    """Context manager: shows a text, asked for every 0.2 seconds by a thread of its own.

    Args:
        text: What the line says now.
        stream: Where the line goes; sys.stderr by default. Nothing is written unless it is a terminal.
    """

    def __init__(self, text: Callable[[], str], stream: Any = None) -> None:
        self._text = text
        self._stream = sys.stderr if stream is None else stream
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ProgressLine:
        if getattr(self._stream, "isatty", lambda: False)():
            active.append(self)
            self._thread = threading.Thread(target=self._tick, name="cstorch-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
            active.remove(self)
            self._write("\r\x1b[2K")

    def _tick(self) -> None:
        while not self._done.wait(0.2):
            if active[-1] is self:
                try:
                    text = self._text()
                except Exception:  # what it tells of may change while it is looked at
                    logger.debug("nothing is shown this time", exc_info=True)
                    continue
                width = shutil.get_terminal_size().columns - 1  # a longer line would wrap and stay
                self._write(f"\r\x1b[2K{text[:width]}")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
