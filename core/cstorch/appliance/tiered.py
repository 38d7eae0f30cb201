"""Runs a program interpreted while another process compiles it, and goes on with the library when that is done.

The compile is in a process of its own, at low priority: Inductor's Python would hold this process's GIL, and tracing
here changes what Inductor sees.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from weakref import finalize

import torch

from cstorch._torch_private.autocast import no_autocast
from cstorch.appliance.portable import PortableProgram
from cstorch.appliance.wire import Layout, Settings
from cstorch.backends import csx
from cstorch.compiler.compile import build, compile_program, interpreting, place_of, warn_of_failure
from cstorch.compiler.interpreter import InterpretedExecutable
from cstorch.compiler.made import Made
from cstorch.compiler.native import has_compiler
from cstorch.compiler.passes import prepare
from cstorch.errors import BackendError, words
from cstorch.lifeline import end_with_controller
from cstorch.tracing.program import Executable, Program

logger = logging.getLogger("cstorch.compile")

_HEAD = 8  # bytes that say how long the message to the process is
_NICENESS = 10


def start_interpreted(program: Program, example: list[torch.Tensor], folder: Path) -> Executable:
    """The executable of `program`: a library where the cache has one, else interpreted until one is compiled.

    Args:
        program: A traced step.
        example: Inputs of the right shapes, strides and dtypes; they are not changed.
        folder: The compile cache.
    """
    if interpreting() or not has_compiler():
        return compile_program(program, example, folder)
    prepared = dataclasses.replace(program, graph=prepare(program.graph))
    path = place_of(prepared, example, folder)
    if path.exists():
        return compile_program(program, example, folder)
    try:
        message = pickle.dumps((PortableProgram.of(program, example), path, Settings.now(False), csx.cache.limit_gi))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        logger.info("%r is compiled before it runs, since it cannot be sent away: %s", program.name, words(error))
        return compile_program(program, example, folder)
    return TieredExecutable(prepared, example, path, message)


class TieredExecutable:
    """An executable that is interpreted first and a library later.

    Args:
        program: The program; its graph has been through the passes.
        example: Inputs of the right shapes, strides and dtypes.
        path: Where the library will be.
        message: What the compiling process is told.

    Attributes:
        made: How what runs now was made, for reports.
    """

    def __init__(self, program: Program, example: list[torch.Tensor], path: Path, message: bytes) -> None:
        self._program, self._path = program, path
        self._layouts = list(map(Layout.of, example))
        self._interpreted = InterpretedExecutable(program.graph)
        self._now: Any = self._interpreted
        self.made = Made("interpreted while it is compiled")
        self._answer: list[dict[str, Any]] = []
        process = _start_process()
        self.end = finalize(self, _end, process, os.getpid())
        arguments = (process, message, self._answer)
        self._thread = threading.Thread(target=_await, args=arguments, name="cstorch-compile", daemon=True)
        self._thread.start()

    @property
    def runs(self) -> int:
        """How often it has run."""
        later = self._now.runs if self._now is not self._interpreted else 0
        return int(self._interpreted.runs + later)

    def __call__(self, inputs: list[Any]) -> list[torch.Tensor]:
        """Run once."""
        if self._answer:
            self._take_over(self._answer.pop())
        outputs: list[torch.Tensor] = self._now(inputs)
        return outputs

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the process that compiles has ended; the next call goes on with what it made."""
        self._thread.join(timeout)

    def _take_over(self, answer: dict[str, Any]) -> None:
        """Go on with the library; stay interpreted, with the usual warning, where there is none."""
        name, error = self._program.name, answer["error"]
        if not error or answer["here"]:
            try:
                with no_autocast():
                    self._now = build(self._program, [layout.empty() for layout in self._layouts], self._path)
            except Exception as raised:
                error = words(raised)
            else:
                self.made = self._now.made
                logger.info("%r goes on compiled, after %d interpreted steps", name, self._interpreted.runs)
                return
        self.made = self._interpreted.made = Made("interpreted", reason=error)
        warn_of_failure(name, error)


def _start_process() -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return subprocess.Popen(
        [sys.executable, "-c", "from cstorch.appliance.tiered import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,  # Ctrl-C is for this process, which ends it with the compilers that it runs
    )


def _await(process: subprocess.Popen[bytes], message: bytes, answer: list[dict[str, Any]]) -> None:
    """In a thread: tell the process what to compile, and note how that went."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(OSError):  # it has died; its status says more
        process.stdin.write(len(message).to_bytes(_HEAD, "big") + message)
        process.stdin.flush()
    text = process.stdout.read()
    status = process.wait()
    try:
        answer.append(json.loads(text))
    except ValueError:
        answer.append({"error": f"the process that compiled it ended with status {status}", "here": False})


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner and process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def main() -> None:
    """The process that compiles: a message on standard input, the answer on standard output."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)  # what compilers print is no answer
        os.nice(_NICENESS)
        size = int.from_bytes(os.read(0, _HEAD), "big")
        message = _read(size)
        end_with_controller(0)
        json.dump(_compile(message), out)


def _read(size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        found += os.read(0, size - len(found)) or sys.exit(1)
    return bytes(found)


def _compile(message: bytes) -> dict[str, Any]:
    try:
        portable, path, settings, limit = pickle.loads(message)
    except BackendError as error:  # an operator that only the user's process knows
        return {"error": words(error), "here": True}
    settings.apply()
    csx.cache.limit_gi = limit
    try:
        program: Any = dataclasses.replace(portable, graph=prepare(portable.graph))
        build(program, [layout.empty() for layout in portable.layouts], path)
    except Exception as error:
        return {"error": words(error), "here": False}
    return {"error": "", "here": False}
