"""DataExecutor: the loop over batches, with its checkpoint steps, activation steps and step closures."""

from __future__ import annotations

import itertools
import json
import logging
import math
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from cstorch import constraints
from cstorch.backend import backend as get_backend
from cstorch.device.tensor import observer
from cstorch.distributed.cluster_config import ClusterConfig
from cstorch.errors import BackendError, DataError
from cstorch.run_folder import make_run_folder
from cstorch.storage import wait_for_saves
from cstorch.tracing.context import Iteration, context
from cstorch.utils.data.batch_size import infer_batch_size
from cstorch.utils.data.dataloader import DataLoader
from cstorch.utils.data.live_view import LiveView
from cstorch.utils.data.old_arguments import take_old_arguments
from cstorch.utils.data.schedule import Range, Schedule
from cstorch.utils.profiler import Profiler
from cstorch.where import user_line

logger = logging.getLogger("cstorch.data")


class DataExecutor:
    """A single run over a dataloader (`cerebras.pytorch.utils.data.DataExecutor`).

    Iterate over it once: each iteration yields a batch; the closures called in its body run when it ends.
    A dataloader that ends before `num_steps` is started again, as a new epoch.

    Args:
        dataloader: A cstorch.utils.data.DataLoader.
        num_steps: The number of steps; the dataloader's length by default, and 1 when the backend compiles
            or validates only.
        checkpoint_steps: None or 0: no checkpoints. An int k: at steps k-1, 2k-1, ... (zero-indexed) and at
            the last. A Schedule: at its steps, zero-indexed.
        activation_steps: Step closures run at every so many steps and at the last; 1 by default. Reduced to
            the greatest common divisor with the checkpoint steps.
        profiler_activities: Activities to profile beside the rates; None or a list of Activity classes.
        writer: A SummaryWriter for summaries.
        cs_config, micro_batch_size, listeners: Of old releases, accepted with a warning. A `cs_config` becomes the
            cluster_config of the backend, as far as that can still be; a `micro_batch_size` has no effect; there are
            no listeners here.
        progress: Show the run in a line on the terminal: steps, loss, rate, tracing, checkpoints, time left. Where
            standard error is no terminal, nothing is shown.

    Raises:
        TypeError: `dataloader` is not a cstorch DataLoader.
        ValueError: `checkpoint_steps` or `activation_steps` is of a wrong kind.
        DataError: no number of steps is given and the dataloader has no length; or it is below 1.
    """

    def __init__(
        self,
        dataloader: DataLoader,
        num_steps: int | None = None,
        checkpoint_steps: int | Schedule | None = None,
        activation_steps: int | None = None,
        profiler_activities: list[Any] | None = None,
        writer: Any = None,
        progress: bool = False,
        cs_config: ClusterConfig | None = None,
        micro_batch_size: Any = None,
        listeners: list[Any] | None = None,
    ) -> None:
        if not isinstance(dataloader, DataLoader):
            raise TypeError(
                f"DataExecutor got a {type(dataloader).__name__}, expected a cstorch.utils.data.DataLoader. "
                "Wrap the function that makes your loader: cstorch.utils.data.DataLoader(input_fn)."
            )
        self.dataloader = dataloader
        self.backend = _backend()
        take_old_arguments(self.backend, cs_config, micro_batch_size, listeners)
        self.num_steps = _steps(self.backend, dataloader, num_steps)
        self._checkpoints = _checkpoint_schedule(checkpoint_steps, self.num_steps)
        self.activation_steps = _activation_steps(activation_steps, checkpoint_steps, self.num_steps)
        self.writer = writer
        self._view: LiveView | None = LiveView(self) if progress else None
        self.profiler = Profiler(profiler_activities, self.backend.flops_done)
        self.iteration = 0
        self.batch: Any = None
        self._started = False
        self._artifact_dir: Path | None = None

    @property
    def cs_config(self) -> Any:
        """The cluster_config of the backend, as old releases called it."""
        return self.backend.cluster_config

    @property
    def user_iteration(self) -> int:
        """The iteration counted from 1."""
        return self.iteration + 1

    @property
    def is_initial_step(self) -> bool:
        """Whether this is the first iteration."""
        return self.iteration == 0

    @property
    def on_final_iteration(self) -> bool:
        """Whether this is the last iteration."""
        return self.iteration == self.num_steps - 1

    @property
    def checkpoint_schedule(self) -> Range | Schedule | None:
        """The steps at which checkpoints are taken, zero-indexed."""
        return self._checkpoints

    @property
    def on_checkpoint_step(self) -> bool:
        """Whether checkpoints are taken in this iteration."""
        return self._checkpoints is not None and self._checkpoints.match(self.iteration)

    @property
    def artifact_dir(self) -> Path:
        """The folder of this run below the backend's artifact_dir, made when first asked for."""
        if self._artifact_dir is None:
            self._artifact_dir = make_run_folder(self.backend.artifact_dir / "executors")
        return self._artifact_dir

    def __len__(self) -> int:
        return self.num_steps

    def __iter__(self) -> Iterator[Any]:
        if self._started:
            raise DataError(
                "this DataExecutor has been iterated over already; it is a single run. Make another one to run again."
            )
        self._started = True
        before = context.executor
        context.executor = self
        final = self.num_steps - 1
        runs = not self.backend.is_csx or self.backend.is_e2e_execution
        every = 1 if not self.backend.is_csx else self.activation_steps
        moves = self.backend.is_gpu
        checkpoints = self._checkpoints if runs else None
        current = Iteration()
        current.fetches = runs
        rates = _Rates(self.profiler)
        self.profiler.start()
        batches = self.dataloader.batches(self)
        open_iteration = False
        view = self._view
        limit = getattr(self.backend.cluster_config, "job_time_sec", None)
        deadline = None if limit is None else time.monotonic() + limit
        if self.backend.is_csx:
            observer.notify = lambda: self._weights_read(current)
        if view is not None:
            view.__enter__()
        try:
            for step in range(self.num_steps):
                if context.profile is not None:
                    context.profile.at_step(step + 1)
                batch = next(batches)
                if moves:
                    batch = self.backend.place(batch)
                self.batch = batch
                self.iteration = step
                if checkpoints is not None:
                    current.is_checkpoint = checkpoints.match(step)
                if every != 1:
                    current.fetches = runs and (step == final or (step + 1) % every == 0)
                context.iteration, open_iteration = current, True
                yield batch
                open_iteration, context.iteration = False, None
                rates.count(batch)
                if current.is_checkpoint:
                    self.backend.check_systems()
                current.finish()
                if view is not None:
                    view.steps = step + 1
                    if current.is_checkpoint:
                        view.last_checkpoint = step + 1
                if deadline is not None and step != final and time.monotonic() > deadline:
                    raise DataError(
                        f"the run was ended after iteration {step}: it has taken longer than the "
                        f"job_time_sec={self.backend.cluster_config.job_time_sec} of its ClusterConfig allows. The "
                        "step is complete and its closures have run. Go on from the last checkpoint, or allow more."
                    )
        finally:
            observer.notify = None
            context.iteration = None
            try:
                if open_iteration:  # the loop was left by break or an exception
                    current.finish()
            finally:
                context.executor, self.batch = before, None
                if view is not None:
                    view.__exit__(*sys.exc_info())
                self.dataloader.end()
                self._write_profile()
                wait_for_saves()

    def _weights_read(self, current: Iteration) -> None:
        """Warn, once a run, that the host reads weights where a real system does not give them."""
        if current.is_checkpoint or context.recording is not None:
            return
        observer.notify = None
        if constraints.is_active():
            rule = constraints.RULES["weights-between-checkpoints"]
            constraints.report(
                [constraints.Finding(rule, user_line(), f"weights are read in iteration {self.iteration}")]
            )
        said = (
            f"weights are read at {user_line()} in iteration {self.iteration}, which is no checkpoint step. The "
            "embedded appliance has them at hand, a real system gives them at checkpoint steps only: read them in a "
            "function decorated with @cstorch.checkpoint_closure, and say DataExecutor(checkpoint_steps=...)."
        )
        self.backend.report.note(said)
        warnings.warn(said, stacklevel=2)

    def _write_profile(self) -> None:
        if not self.profiler:
            return
        path = self.artifact_dir / "performance.json"
        path.write_text(json.dumps(self.profiler.compute(), indent=2, default=str) + "\n")


def current_executor() -> DataExecutor | None:
    """The executor whose loop is running; None outside of any loop (`cerebras.pytorch.current_executor`)."""
    executor: DataExecutor | None = context.executor
    return executor


class _Rates:
    """Counts samples, inferring the batch size again only when the first tensor changes its shape."""

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler
        self._shape: Any = None
        self._size = 0

    def count(self, batch: Any) -> None:
        if not self._profiler:
            return
        first = batch
        while type(first) in (tuple, list, dict) and first:
            first = next(iter(first.values())) if type(first) is dict else first[0]
        shape = first.shape if isinstance(first, torch.Tensor) else None
        if shape is None or shape != self._shape:
            self._shape, self._size = shape, infer_batch_size(batch) or 1
        self._profiler.add(self._size)


def _backend() -> Any:
    try:
        return get_backend()
    except BackendError:
        return get_backend("CPU")


def _steps(backend: Any, dataloader: DataLoader, num_steps: int | None) -> int:
    if num_steps is not None and num_steps < 1:
        raise DataError(f"num_steps is {num_steps}, expected at least 1.")
    if not backend.is_e2e_execution:
        if num_steps is not None and num_steps > 1 and context.validation is None:
            warnings.warn(
                f"num_steps is {num_steps}, but the backend only compiles or validates: one step is traced.",
                stacklevel=3,
            )
        return 1
    if num_steps is not None:
        return int(num_steps)
    try:
        length = len(dataloader)
    except TypeError as error:
        raise DataError(
            "num_steps is not given and the dataloader has no length. Say DataExecutor(dataloader, num_steps=...)."
        ) from error
    if length < 1:
        raise DataError("the dataloader has no batch: its length is 0.")
    return length


def _checkpoint_schedule(steps: int | Schedule | None, num_steps: int) -> Range | Schedule | None:
    if steps is None or steps == 0:
        return None
    if isinstance(steps, Schedule):
        return steps
    if isinstance(steps, int) and not isinstance(steps, bool) and steps > 0:
        if steps > num_steps:
            return Range(num_steps - 1, num_steps)
        return Range(steps - 1, num_steps, steps, include_last=True)
    raise ValueError(f"checkpoint_steps is {steps!r}, expected None, an int of at least 0 or a Schedule.")


def _activation_steps(steps: int | None, checkpoint_steps: Any, num_steps: int) -> int:
    if steps is None:
        return 1
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"activation_steps is {steps!r}, expected an int of at least 1.")
    common = steps
    if isinstance(checkpoint_steps, Schedule):
        within = itertools.takewhile(lambda step: step < num_steps - 1, checkpoint_steps)  # the last is fetched anyway
        common = math.gcd(steps, *(step + 1 for step in within))
    elif checkpoint_steps:
        common = math.gcd(steps, checkpoint_steps)
    if common != steps:
        warnings.warn(
            f"activation_steps={steps} does not divide checkpoint_steps={checkpoint_steps}: activations are "
            f"fetched every {common} steps.",
            stacklevel=3,
        )
    return common
