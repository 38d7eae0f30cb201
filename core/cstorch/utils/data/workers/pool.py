"""All input workers of a run: step t takes its batch from worker t mod n."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing import reduction, util
from typing import Any

from cstorch.backends.csx import data, debug
from cstorch.distributed.streaming import Streamer
from cstorch.errors import DataError
from cstorch.utils.data.restartable import combine
from cstorch.utils.data.workers.messages import Run
from cstorch.utils.data.workers.stream import WorkerStream
from cstorch.utils.data.workers.worker import Task


class WorkerPool:
    """Starts the workers of one system and merges what they stream.

    Args:
        input_fn: The input function; every worker calls it.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        seeds: One for each worker.
        python_paths: Folders that come first on their import path.

    Raises:
        DataError: the input function cannot be pickled.
    """

    def __init__(
        self,
        input_fn: Callable[..., Any],
        args: Any,
        kwargs: Any,
        seeds: list[int],
        python_paths: list[str] | None,
    ) -> None:
        count = len(seeds)
        try:
            pickled = bytes(reduction.ForkingPickler.dumps((input_fn, args, kwargs)))
        except Exception as error:
            raise DataError(
                f"input_fn {getattr(input_fn, '__qualname__', input_fn)!r} cannot be sent to the "
                f"{count} input workers ({type(error).__name__}: {error}). Define it at the top level of a module, not "
                "in a function or as a lambda, and pass it arguments that can be pickled; or let it stay in this "
                "process with num_workers_per_csx=1 and without wrk_memory_gi."
            ) from error
        paths = tuple(python_paths or ())
        chosen = multiprocessing.get_start_method(allow_none=True)
        start_method = multiprocessing.get_all_start_methods()[0] if chosen is None else chosen
        self.streams: list[WorkerStream] = []
        self._end = util.Finalize(self, _close, args=(self.streams,), exitpriority=100)
        try:
            for rank, seed in enumerate(seeds):
                task = Task(pickled, Streamer(rank, count), seed, paths, os.getpid(), start_method, debug.wrk_memory_gi)
                self.streams.append(WorkerStream(task, data.worker_timeout))
        except BaseException:
            self.close()
            raise

    @property
    def length(self) -> int | None:
        """The batches that all workers stream in an epoch, or None when a loader has no length."""
        lengths = [stream.ready.length for stream in self.streams]
        return None if any(n is None for n in lengths) else sum(n for n in lengths if n is not None)

    def run(self, run: Run) -> Iterator[Any]:
        """The batches of a run, in the order of its steps."""
        for stream in self.streams:
            stream.begin(run)
        first = run.before % len(self.streams)
        for stream in itertools.islice(itertools.cycle(self.streams), first, first + run.num_steps):
            yield stream.batch()

    def state(self, step: int) -> tuple[dict[str, Any], list[Any]]:
        """One state of all loaders when step `step` had been streamed, and that of their random numbers."""
        states, random = map(list, zip(*(stream.state(step) for stream in self.streams), strict=True))
        first = self.streams[0]
        return first.combined(states) if first.ready.combines else combine(None, states), random

    def close(self) -> None:
        """End all workers."""
        self._end()


def _close(streams: list[WorkerStream]) -> None:
    for act in (WorkerStream.stop, WorkerStream.close):
        for stream in streams:
            with contextlib.suppress(OSError, ValueError):
                act(stream)
