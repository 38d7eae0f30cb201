"""DataLoader: wraps the function that makes a dataloader, so that the device's workers can call it."""

from __future__ import annotations

import contextlib
import logging
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cstorch.backends.csx import debug
from cstorch.distributed.streaming import Streamer, streaming_as
from cstorch.errors import DataError
from cstorch.tracing.context import context
from cstorch.utils.data.batch_size import infer_batch_size
from cstorch.utils.data.epochs import Epochs
from cstorch.utils.data.generators import generators_kept, set_generator_states
from cstorch.utils.data.restartable import batches_to_skip, combine, worker_state
from cstorch.utils.data.workers.messages import Run
from cstorch.utils.data.workers.pool import WorkerPool
from cstorch.utils.data.wrapped import unwrapped

logger = logging.getLogger("cstorch.data")

_STEPS = "__cstorch_steps__"
_RANDOM = "__cstorch_random__"


class DataLoader:
    """Calls an input function and hands its batches to the device (`cerebras.pytorch.utils.data.DataLoader`).

    With one worker, the input function runs in this process, between the steps: a thread would get no turn during a
    step, which holds the interpreter's lock. With `ClusterConfig(num_workers_per_csx=n)` each of n processes calls it
    and prepares batches while steps run, and step t takes its batch from worker t mod n; shard the data by
    `cstorch.distributed.get_streaming_rank()`, unless all are to stream the same. Every worker draws random numbers of
    its own, which follow `torch.manual_seed`; with one worker they are those of this process, as with a torch
    DataLoader.

    A run can go on where an earlier one stopped: see `state_dict`. A loader with `state_dict()` and
    `load_state_dict()`, such as a torchdata StatefulDataLoader, is asked for its own state; any other goes on by
    skipping what was streamed of its epoch.

    Args:
        input_fn: Returns a torch DataLoader or any iterable of nested tensors.
        *args: Passed to `input_fn`.
        **kwargs: Passed to `input_fn`.

    Raises:
        TypeError: `input_fn` is not callable.
    """

    def __init__(self, input_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if not callable(input_fn):
            raise TypeError(
                f"DataLoader got a {type(input_fn).__name__}, expected a function that returns a dataloader: "
                "cstorch.utils.data.DataLoader(input_fn, *args). Wrap an existing loader as lambda: loader."
            )
        self.input_fn = input_fn
        self.args, self.kwargs = args, kwargs
        self._epochs: Epochs | None = None
        self._pool: WorkerPool | None = None
        self._run: Any = None
        self._final: dict[str, Any] | None = None  # the state of workers that have ended
        self._resume: tuple[dict[str, Any] | None, bool] = None, True
        self._before = 0  # steps of the runs that this one goes on from
        self._seen_batch_size: int | None = None
        self._runs = 0

    @property
    def dataloader(self) -> Any:
        """What `input_fn` returns in this process; it is called when first needed."""
        return unwrapped(self._here().loader)

    @property
    def batch_size(self) -> int | None:
        """The batch size, when the loader says it."""
        pool = self._workers()
        known = pool.streams[0].ready.batch_size if pool else getattr(self._here().loader, "batch_size", None)
        return known or self._seen_batch_size

    def __len__(self) -> int:
        pool = self._workers()
        if pool is None:
            return len(self._here().loader)
        if pool.length is None:
            raise TypeError("the dataloader of input_fn has no length")
        return pool.length

    def __iter__(self) -> Iterator[Any]:
        """One epoch in this process. A generator that has ended is asked for again from `input_fn`."""
        return self._here().epoch()

    def __copy__(self) -> DataLoader:
        return DataLoader(self.input_fn, *self.args, **self.kwargs)

    # -- one run -----------------------------------------------------------------------------------------

    def batches(self, run: Any) -> Iterator[Any]:
        """The batches of an executor's run, epoch after epoch.

        Args:
            run: The DataExecutor.

        Raises:
            DataError: while iterating: an epoch is empty, or a worker has failed, died or hung.
        """
        self._run, self._final = run, None
        (state, strict), self._resume = self._resume, (None, True)
        self._before, random_states = 0, None
        if state is not None:
            state = dict(state)
            self._before = state.pop(_STEPS, 0)
            random_states = state.pop(_RANDOM, None)
            skips = batches_to_skip(state)
            if skips is not None:
                logger.warning("the dataloader has no state of its own: it skips %d batches of its epoch.", skips)
        pool = self._workers()
        count = 1 if pool is None else len(pool.streams)
        if random_states is not None and (len(random_states) != count or ("now" in random_states[0]) is (pool is None)):
            random_states = None  # of another number of workers: they begin with numbers of their own
        if pool is not None:
            checkpoints = run.checkpoint_schedule or ()
            return pool.run(Run(run.num_steps, checkpoints, state, strict, self._before, random_states))
        if state is not None:
            mine = random_states[0] if random_states else None
            with streaming_as(self._identity), generators_kept():
                if self._epochs is None and mine is not None:
                    set_generator_states(mine["made"])
                self._here().restore(state, Streamer(), strict, mine)
        return self._stream_here()

    def end(self) -> None:
        """End the workers; the executor calls it when its loop is over."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            with contextlib.suppress(DataError):  # a worker is gone, which is what the loop ends with
                if self._run.on_final_iteration:
                    self._final = self._of_workers(pool)
        finally:
            pool.close()

    def state_dict(self) -> dict[str, Any]:
        """The state to save: that of all workers, where the step that has just ended left them.

        Returns:
            What the loader's `aggregate_state_dict` makes of the states of the workers, for `load_state_dict`.

        Raises:
            DataError: there is no run, or its present step is no checkpoint step.
        """
        run = self._run
        if run is None or not (run.on_checkpoint_step or run.on_final_iteration):
            where = "no run has begun" if run is None else f"iteration {run.iteration} is no checkpoint step"
            raise DataError(
                f"state_dict() of a dataloader was asked for, but {where}. Ask in a function decorated with "
                "@cstorch.checkpoint_closure, with DataExecutor(checkpoint_steps=...)."
            )
        if self._final is not None:
            state = self._final
        elif self._pool is not None:
            state = self._of_workers(self._pool)
        else:
            epochs = self._here()
            mine = worker_state(epochs.loader, Streamer(), run.iteration + 1, self.batch_size, self._before)
            state = {**combine(epochs.loader, [mine]), _RANDOM: [epochs.random_state()]}
        return {**state, _STEPS: self._before + run.iteration + 1}

    def _of_workers(self, pool: WorkerPool) -> dict[str, Any]:
        state, random_states = pool.state(self._run.iteration)
        return {**state, _RANDOM: random_states}

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Let the next run go on from a state that `state_dict` gave.

        Args:
            state_dict: The state.
            strict: Handed to the loader's own `load_state_dict`.

        Raises:
            DataError: a run is going on.
        """
        if context.executor is not None and context.executor is self._run:
            raise DataError("load_state_dict() of a dataloader was called in its run. Call it before the loop.")
        self._resume = state_dict, strict

    # -- where it runs -----------------------------------------------------------------------------------

    @property
    def _identity(self) -> Streamer | None:
        return Streamer() if context.backend is not None and context.backend.is_csx else None

    def _workers(self) -> WorkerPool | None:
        """The worker processes, started when first needed; None where the one worker is this process."""
        backend = context.backend
        if backend is None or not backend.is_csx or not backend.is_e2e_execution:
            return None
        config = backend.cluster_config
        count = config.num_workers_per_csx
        if count == 1 and debug.wrk_memory_gi is None:
            return None
        if self._pool is None:
            self._runs += 1
            source = random.Random(f"{torch.initial_seed()} {self._runs}")
            self._pool = WorkerPool(
                self.input_fn,
                self.args,
                self.kwargs,
                [source.getrandbits(63) for _ in range(count)],
                config.python_paths,
            )
        return self._pool

    def _here(self) -> Epochs:
        if self._epochs is None:
            config = getattr(context.backend, "cluster_config", None)
            sys.path += [path for path in getattr(config, "python_paths", None) or () if path not in sys.path]
            with streaming_as(self._identity):
                self._epochs = Epochs(self.input_fn, self.args, self.kwargs)
        return self._epochs

    def _stream_here(self) -> Iterator[Any]:
        identity = streaming_as(self._identity)
        batches = self._here().stream()
        with identity:
            batch = next(batches)
        if self._seen_batch_size is None:  # asked once: batches without a size would cost every step
            self._seen_batch_size = infer_batch_size(batch)
        while True:
            yield batch
            with identity:
                batch = next(batches)
