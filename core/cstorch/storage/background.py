"""Saves in the background: the loop goes on once its tensors are copied into a staging buffer that is kept.

One thread writes one checkpoint at a time. The next save, the end of a run and the interpreter's exit wait for it, and
an error that nobody asked for is raised by the next of them.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from cstorch.storage.block import Block
from cstorch.storage.write import Plan

_LEAST = 1 << 20
_THREADS = min(4, len(os.sched_getaffinity(0)))


class PendingSave:
    """A save that goes on in the background.

    Args:
        name: The file that is written.
        write: Writes it.
    """

    def __init__(self, name: str, write: Callable[[], None]) -> None:
        self.name = name
        self._write = write
        self._error: BaseException | None = None
        self._is_seen = False
        self._thread = threading.Thread(target=self._run, name="cstorch-save")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as error:
            self._error = error

    def done(self) -> bool:
        """Whether the file is written, or the save failed."""
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the file to be written.

        Args:
            timeout: For so many seconds at most.

        Raises:
            TimeoutError: it is still being written.
            CheckpointError: it cannot be written. Nothing else raises this error then.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the checkpoint {self.name} is still being written after {timeout} s.")
        self._is_seen = True
        if self._error is not None:
            raise self._error

    @property
    def error(self) -> BaseException | None:
        """Why the save failed; None while it goes on, and when it did not."""
        if self._error is not None:
            self._is_seen = True
        return self._error

    def _settle(self) -> None:
        """Wait, and raise an error that nobody has seen."""
        self._thread.join()
        if self._error is not None and not self._is_seen:
            self.wait()


class _Staging:
    """The memory that blocks are copied into, kept for the next save: its pages are there then."""

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None

    def take(self, plan: Plan) -> None:
        """Copy the contents of all blocks, so that `plan` writes what they are now."""
        offsets, size = [], 0
        blocks = [block for block in plan.blocks if block.source is None]
        for block in blocks:
            offsets.append(size)
            size += -(-block.nbytes // 64) * 64
        memory = self._memory
        if memory is None or memory.numel() < size:
            pages = mmap.mmap(-1, max(size, _LEAST), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with contextlib.suppress(OSError):  # a kernel without them
                pages.madvise(mmap.MADV_HUGEPAGE)  # the first save waits for every page
            memory = self._memory = torch.frombuffer(pages, dtype=torch.uint8)
        target = memory.numpy()

        def copy(block: Block, at: int) -> None:
            for piece in block.pieces():
                target[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
                at += len(piece)

        placed = list(zip(blocks, offsets, strict=True))
        with ThreadPoolExecutor(_THREADS) as pool:  # one thread does not fill the memory's bus
            copies = [pool.submit(copy, block, at) for block, at in placed if block.is_plain]
            for block, at in placed:
                if not block.is_plain:
                    copy(block, at)
            for copied in copies:
                copied.result()
        for block, at in placed:
            block.owner, block.start = memory, at


_staging = _Staging()
_current: list[PendingSave] = []


def start(name: str, plan: Plan, write: Callable[[], None]) -> PendingSave:
    """Stage what `plan` writes, and let `write` write it in the background.

    Args:
        name: The file.
        plan: What is written.
        write: Writes it.
    """
    wait_for_saves()
    _staging.take(plan)
    pending = PendingSave(name, write)
    _current.append(pending)
    return pending


def saves_now() -> list[str]:
    """The files that are being written in the background."""
    return [pending.name for pending in _current if not pending.done()]


def wait_for_saves() -> None:
    """Wait for a save that goes on in the background.

    Raises:
        CheckpointError: it failed, and nobody has asked for its error.
    """
    while _current:
        _current.pop()._settle()


@atexit.register
def _at_exit() -> None:
    try:
        wait_for_saves()
    except Exception as error:
        warnings.warn(f"the last checkpoint was not written: {error}", stacklevel=1)
