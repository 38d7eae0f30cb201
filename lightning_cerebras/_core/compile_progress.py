"""A callback that says when a Trainer's step becomes a program, since compiling one can take long."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

_SHOWN = {"trace": "tracing", "compile": "compiling"}


class CompileProgressMixin:
    """Writes a line for each program: `csx: program 1: tracing 0.4 s, compiling 21.0 s`. Silent on other accelerators.

    Args:
        stream: Where to; stderr by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream
        self._watched: Any = None
        self.programs = 0

    def _start(self, trainer: Any, module: Any) -> None:
        backend = getattr(trainer.strategy, "backend", None)
        if backend is None or backend is self._watched:
            return
        self._watched, inner = backend, backend.profile

        @contextlib.contextmanager
        def surround(part: str) -> Iterator[None]:
            with inner(part) if inner is not None else contextlib.nullcontext():
                if part not in _SHOWN:
                    yield
                    return
                with self._shown(part):
                    yield

        backend.profile = surround

    on_sanity_check_start = on_train_start = on_validation_start = on_test_start = on_predict_start = _start

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """The run is over; the strategy lets go of the backend."""
        self._watched = None

    @contextlib.contextmanager
    def _shown(self, part: str) -> Iterator[None]:
        stream = self._stream or sys.stderr
        if part == "trace":
            self.programs += 1
            stream.write(f"csx: program {self.programs}: ")
        stream.write(_SHOWN[part])
        stream.flush()
        start, ended = time.perf_counter(), False
        try:
            yield
            ended = True
        finally:
            took = f" {time.perf_counter() - start:.1f} s" if ended else " failed"
            stream.write(took + (", " if part == "trace" and ended else "\n"))
            stream.flush()
