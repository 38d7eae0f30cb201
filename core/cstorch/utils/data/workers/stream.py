"""The controller's side of one input worker: starts its process and takes batches, states and failures from it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import time
from collections import deque
from multiprocessing import reduction
from typing import Any

from cstorch.errors import DataError
from cstorch.tracing import nest
from cstorch.utils.data.workers.messages import RECORD, REQUEST, Failure, Kind, Ready, Run, read
from cstorch.utils.data.workers.slots import Layout, Place, Slots
from cstorch.utils.data.workers.worker import Task, main

# A fork of this process would inherit its threads' locks; a fresh interpreter for each worker takes seconds to import
# torch. The fork server is fresh, and imports once.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["cstorch.utils.data.workers.worker"])
_POLITE = 1.0  # seconds that a worker has to end by itself


class WorkerStream:
    """One worker process, seen from the controller.

    Args:
        task: What the worker does.
        timeout: Seconds without a word after which it counts as hung.
    """

    def __init__(self, task: Task, timeout: float) -> None:
        self._filled, filled = _processes.Pipe(duplex=False)
        freed, self._freed = _processes.Pipe(duplex=False)
        self._control, control = _processes.Pipe()
        lifeline, self._lifeline = _processes.Pipe(duplex=False)
        self.rank, self._timeout, self._memory_gi = task.streamer.rank, timeout, task.memory_gi
        ends = (filled, freed, control, lifeline)
        # Not daemonic: the user's loader may start processes of its own.
        self._process = _processes.Process(
            target=main, args=(task, *ends), name=f"cstorch-worker-{self.rank}", daemon=False
        )
        self._process.start()
        for end in ends:
            end.close()
        self._records: deque[tuple[int, int, Any]] = deque()
        self._poll = select.poll()
        self._poll.register(self._filled.fileno(), select.POLLIN)
        self._poll.register(self._process.sentinel, select.POLLIN)
        self._states: dict[int, Any] = {}
        self._slots: Slots | None = None
        self._layout: Layout | None = None
        self._generation = self._held = 0
        self._ready: Ready | None = None
        self._stopped = 0.0
        self._closed = False

    @property
    def ready(self) -> Ready:
        """What the worker's loader says of itself; waits for it."""
        while self._ready is None:
            self._take_other(self._record())
        return self._ready

    def begin(self, run: Run) -> None:
        """Tell the worker to stream."""
        with contextlib.suppress(BrokenPipeError):  # it has failed: the next record says how
            _ = self.ready
            self._control.send(run)

    def batch(self) -> Any:
        """The next batch, its tensors views of shared memory."""
        while True:
            record = self._record()
            if record[0] == Kind.BATCH:
                return self._view(record[1])
            self._take_other(record)

    def state(self, step: int) -> Any:
        """The state that the loader had when step `step` had been streamed."""
        while step not in self._states:
            self._take_other(self._record())
        return self._states[step]

    def combined(self, states: list[Any]) -> Any:
        """One state of those of all workers, made by this worker's loader."""
        os.write(self._freed.fileno(), RECORD.pack(REQUEST, 0))
        self._control.send(states)
        later = []  # the worker goes on until it is out of slots: what it sends meanwhile is for the next steps
        while (record := self._record())[0] != Kind.COMBINED:
            if record[0] == Kind.FAILED:
                self._take_other(record)
            later.append(record)
        self._records.extendleft(reversed(later))
        return record[2]

    def _record(self) -> tuple[int, int, Any]:
        """The next record with the object that belongs to it."""
        if not self._records:
            self._wait()
            self._records.extend((kind, slot, None) for kind, slot in read(self._filled.fileno()))
            if not self._records:
                raise self._died()
        kind, slot, what = self._records.popleft()
        if kind == Kind.BATCH or what is not None:
            return kind, slot, what
        try:
            what = self._control.recv()
            if kind == Kind.SLOTS:
                what = (*what, reduction.recv_handle(self._control))
        except EOFError:
            raise self._died() from None
        return kind, slot, what

    def _wait(self) -> None:
        """Until there is a record."""
        end = time.monotonic() + self._timeout
        while True:
            ready = [fd for fd, _ in self._poll.poll(max(0.0, end - time.monotonic()) * 1000)]
            if self._filled.fileno() in ready:
                return
            if ready:
                raise self._died()
            if time.monotonic() >= end:
                raise DataError(
                    f"input worker {self.rank} (process {self._process.pid}) has sent nothing for {self._timeout:g} "
                    "seconds: its input_fn or its dataset seems to hang. If it is only slow, raise "
                    "cstorch.backends.csx.data.worker_timeout."
                )

    def _died(self) -> DataError:
        self._process.join(_POLITE)
        code = self._process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit status {code}"
        if self._ready is None and code == 1:
            advice = (
                'A worker imports the program\'s main module: is the run below `if __name__ == "__main__":` there? Can '
                "input_fn be imported? What the worker printed says more."
            )
        elif self._memory_gi is not None:
            advice = self._about_memory()
        else:
            advice = "A killed worker is often one that took too much memory; what it printed may say more."
        return DataError(
            f"input worker {self.rank} (process {self._process.pid}) {how} before it had streamed its batches. {advice}"
        )

    def _about_memory(self) -> str:
        return (
            f"It may allocate cstorch.backends.csx.debug.wrk_memory_gi={self._memory_gi:g} GiB: raise that, or let "
            "input_fn load less at a time."
        )

    def _take_other(self, record: tuple[int, int, Any]) -> None:
        kind, _, what = record
        if kind == Kind.READY:
            self._ready = what
        elif kind == Kind.LAYOUT:
            self._layout = what
        elif kind == Kind.SLOTS:
            slot_bytes, count, self._generation, fd = what
            self._slots = Slots(slot_bytes, count, fd)
            self._slots.close_fd()
            self._held = 0
        elif kind == Kind.STATE:
            step, state = what
            self._states = {step: state}  # one checkpoint at a time: those before are past
        elif kind == Kind.FAILED:
            failure: Failure = what
            limited = failure.out_of_memory and self._memory_gi is not None
            advice = f" for want of memory. {self._about_memory()}" if limited else ":"
            raise DataError(
                f"input worker {self.rank} failed at step {failure.step}{advice}\n{failure.text.rstrip()}"
            ) from failure.error

    def _view(self, slot: int) -> Any:
        assert self._slots is not None
        assert self._layout is not None
        generation = self._generation

        def released() -> None:
            if generation == self._generation:
                self._held -= 1
            with contextlib.suppress(OSError):
                os.write(self._freed.fileno(), RECORD.pack(generation, slot))

        self._held += 1
        found = self._slots.tensors(slot, self._layout, released)
        if self._held > self._slots.count // 2:  # the program keeps batches: leave the worker room to go on
            found = [tensor.clone() for tensor in found]
        tensors = iter(found)
        return nest.map_leaves(lambda leaf: next(tensors) if type(leaf) is Place else leaf, self._layout.template)

    def stop(self) -> None:
        """Let the worker end by itself, with what its loader has started."""
        if not self._stopped:
            self._stopped = time.monotonic()
            for end in (self._freed, self._control, self._filled):
                end.close()

    def close(self) -> None:
        """End the worker, whatever it does."""
        if self._closed:
            return
        self._closed = True
        self.stop()
        self._process.join(max(0.0, self._stopped + _POLITE - time.monotonic()))
        self._lifeline.close()
        for end in (self._process.terminate, self._process.kill):
            if self._process.is_alive():
                end()
                self._process.join(_POLITE)
        self._process.join()
        self._process.close()
