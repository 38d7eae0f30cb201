"""The process of one input worker: runs the input function, and streams batches of its steps epoch after epoch."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import resource
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import torch

from cstorch.distributed.streaming import Streamer, streaming_as
from cstorch.lifeline import end_with_controller
from cstorch.tracing import nest
from cstorch.utils.data.batch_size import infer_batch_size
from cstorch.utils.data.epochs import Epochs, length_of
from cstorch.utils.data.generators import generator_states, seed_generators, set_generator_states
from cstorch.utils.data.restartable import combine, combines, worker_state
from cstorch.utils.data.workers.messages import REQUEST, Failure, Kind, Ready, Run, as_picklable, read, write
from cstorch.utils.data.workers.slots import Layout, Slots, layout_of


@dataclass(frozen=True)
class Task:
    """What a worker is started with.

    Attributes:
        input_fn: The input function with its arguments, pickled.
        streamer: Who the worker is.
        seed: Seeds its random number generators.
        python_paths: Folders that come first on the import path.
        parent: The controller's process.
        start_method: How the loader's own processes start, as they would in the controller.
        memory_gi: So many GiB it may allocate, beside the shared memory of its batches; None for no limit.
    """

    input_fn: bytes
    streamer: Streamer
    seed: int
    python_paths: tuple[str, ...]
    parent: int
    start_method: str
    memory_gi: float | None = None


def main(task: Task, filled: Connection, freed: Connection, control: Connection, lifeline: Connection) -> None:
    """Run one worker until its steps are done or the controller is gone.

    Args:
        task: What to do.
        filled: Records go to the controller here.
        freed: Records of slots that may be written again come here.
        control: Objects go to the controller here, and a `Run` comes from it.
        lifeline: Its other end is open as long as the controller lives.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the controller ends the workers
    end_with_controller(lifeline.fileno())
    if task.memory_gi is not None:
        limit = int(task.memory_gi * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    multiprocessing.set_start_method(task.start_method, force=True)
    sys.path[:0] = task.python_paths
    torch.set_num_threads(1)
    worker = _Worker(task, filled.fileno(), freed.fileno(), control)
    try:
        with streaming_as(task.streamer):
            worker.run()
        worker.wait_for_end()
    except (BrokenPipeError, EOFError):
        return  # the controller has ended the run
    except BaseException as error:
        failure = Failure(worker.step, traceback.format_exc(), as_picklable(error), is_out_of_memory(error))
        try:
            write(filled.fileno(), Kind.FAILED)
            control.send(failure)
            worker.wait_for_end()
        except (BrokenPipeError, EOFError):
            return


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, PyTorch or the loader of shared libraries could not get memory."""
    signs = ("can't allocate memory", "failed to map segment")
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in signs)


class _Worker:
    def __init__(self, task: Task, filled: int, freed: int, control: Connection) -> None:
        self.task, self._filled, self._freed, self._control = task, filled, freed, control
        self.step = 0
        self._before = 0
        self._slots: Slots | None = None
        self._generation = 0
        self._layout: Layout | None = None
        self._key: list[Any] = []
        self._views: dict[int, list[torch.Tensor]] = {}
        self._free: list[int] = []
        self._batch_size: int | None = None

    def run(self) -> None:
        streamer = self.task.streamer
        seed_generators(self.task.seed)
        self._epochs = Epochs(*pickle.loads(self.task.input_fn))
        loader = self._epochs.loader
        self._batch_size = getattr(loader, "batch_size", None)
        self._say(Kind.READY, Ready(length_of(loader), self._batch_size, combines(loader)))
        run: Run = self._control.recv()
        random = run.random[streamer.rank] if run.random is not None else None
        if run.state is not None:
            self._epochs.restore(run.state, streamer, run.strict, random)
        if random is not None:
            set_generator_states(random["now"])
        self.step, self._before = streamer.first_step(run.before), run.before
        batches = self._epochs.stream()
        checkpoints = _checkpoints(run)
        checkpoint = next(checkpoints, None)
        while True:
            while checkpoint is not None and checkpoint < self.step:
                self._say(Kind.STATE, (checkpoint, self._state(checkpoint)))
                checkpoint = next(checkpoints, None)
            if self.step >= run.num_steps:
                return
            batch = next(batches)
            if self._batch_size is None:
                self._batch_size = infer_batch_size(batch)
            self._send(batch)
            self.step += streamer.num_workers_per_csx

    def _state(self, step: int) -> tuple[Any, Any]:
        now = generator_states()  # before the loader is asked: torchdata's draws when it has not begun
        random = {**self._epochs.random_state(), "now": now}
        return worker_state(self._epochs.loader, self.task.streamer, step + 1, self._batch_size, self._before), random

    def _say(self, kind: Kind, what: Any) -> None:
        write(self._filled, kind)
        self._control.send(what)

    def _send(self, batch: Any) -> None:
        key: list[Any] = []
        tensors: list[torch.Tensor] = []
        nest.signature(batch, key, tensors, key)
        others = any(type(part) is nest.Identity for part in key)
        if others:  # parameters are tensors like others here; what else there is may have changed inside
            tensors = [leaf.detach() for leaf in nest.leaves(batch) if isinstance(leaf, torch.Tensor)]
            key += [(tensor.shape, tensor.dtype) for tensor in tensors]
        if self._layout is None or others or key != self._key:
            self._key, self._layout = key, layout_of(batch)
            self._views.clear()
            self._say(Kind.LAYOUT, self._layout)
            if self._slots is None or self._layout.nbytes > self._slots.slot_bytes:
                self._make_slots(self._layout.nbytes)
        slot = self._take_slot()
        views = self._views.get(slot)
        if views is None:
            assert self._slots is not None
            views = self._views[slot] = self._slots.tensors(slot, self._layout)
        with torch.no_grad():
            for view, tensor in zip(views, tensors, strict=True):
                view.copy_(tensor)
        write(self._filled, Kind.BATCH, slot)

    def _make_slots(self, nbytes: int) -> None:
        """Get larger slots; those before live on in the controller as long as it has views of them."""
        self._slots = Slots(nbytes)
        self._generation += 1
        self._free = list(range(self._slots.count))
        self._say(Kind.SLOTS, (self._slots.slot_bytes, self._slots.count, self._generation))
        reduction.send_handle(self._control, self._slots.fd, self.task.parent)
        self._slots.close_fd()

    def _take_slot(self) -> int:
        """A slot that may be written; waits for one. Raises EOFError when the controller is gone."""
        while not self._free:
            self._free += [slot for generation, slot in self._received() if generation == self._generation]
        return self._free.pop()

    def _received(self) -> list[tuple[int, int]]:
        """Records from the controller, its requests done."""
        records = read(self._freed)
        if not records:
            raise EOFError
        if any(generation == REQUEST for generation, _ in records):
            self._say(Kind.COMBINED, combine(self._epochs.loader, self._control.recv()))
        return records

    def wait_for_end(self) -> None:
        """Stay until the controller closes the pipes: what was sent must be there to be received."""
        while True:
            self._received()


def _checkpoints(run: Run) -> Iterator[int]:
    last = run.num_steps - 1
    yield from itertools.takewhile(lambda step: step < last, run.checkpoint_steps)
    yield last
