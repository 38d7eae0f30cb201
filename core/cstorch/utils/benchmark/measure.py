"""`benchmark_dataloader`: iterates over a dataloader and nothing else, and says how fast it is."""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from cstorch.progress_line import ProgressLine, bar
from cstorch.tracing import nest
from cstorch.utils.benchmark.report import report
from cstorch.utils.benchmark.utils.dataloader import (
    BatchMetrics,
    BatchSpec,
    BatchSpecOccurence,
    BatchTimes,
    EpochMetrics,
    Metrics,
)

_EVERY = 100


def benchmark_dataloader(
    input_fn: Callable[[], Iterable[Any]],
    num_epochs: int | None = None,
    steps_per_epoch: int | None = None,
    sampling_frequency: int | None = None,
    profile_activities: list[str] | None = None,
    print_metrics: bool = True,
) -> Metrics:
    """Measure how fast a dataloader gives batches (`cerebras.pytorch.utils.benchmark.benchmark_dataloader`).

    Ctrl-C ends the benchmark: what was measured so far is returned, with `is_partial` set.

    Args:
        input_fn: Makes the dataloader. One that makes a generator is called again for each epoch.
        num_epochs: Epochs to iterate over; 1 by default.
        steps_per_epoch: Steps of each epoch; all by default.
        sampling_frequency: Every so many steps, and at the first of each epoch, metrics are sampled; 100 by default.
        profile_activities: Names of profiler activities to sample as well: "memory", "cpu", "io" and those that
            plugins register.
        print_metrics: Write the report, see `cstorch.utils.benchmark.report`, to standard output.

    Returns:
        The metrics.

    Raises:
        TypeError: `input_fn` is not a function, or makes what cannot be iterated over.
        ValueError: a number is below 1, or there is no activity of a name.
    """
    if not callable(input_fn):
        raise TypeError(
            f"benchmark_dataloader got a {type(input_fn).__name__}, expected a function that makes a dataloader. Say "
            "benchmark_dataloader(lambda: loader) for one that is made already."
        )
    frequency = _EVERY if sampling_frequency is None else sampling_frequency
    numbers = {"num_epochs": num_epochs, "steps_per_epoch": steps_per_epoch, "sampling_frequency": frequency}
    for name, number in numbers.items():
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
            raise ValueError(f"{name} is {number!r}, expected an int of at least 1.")
    measurement = Measurement(input_fn, num_epochs or 1, steps_per_epoch, frequency, profile_activities or [])
    metrics = measurement.run()
    if print_metrics:
        sys.stdout.write(report(metrics))
    return metrics


class Measurement:
    """One run of the benchmark; the arguments are those of `benchmark_dataloader`.

    Args:
        clock: Counts ns; replaced by the tests.
        stream: Where the progress line goes, if it is a terminal; sys.stderr by default.
    """

    def __init__(
        self,
        input_fn: Callable[[], Iterable[Any]],
        num_epochs: int,
        steps_per_epoch: int | None,
        frequency: int,
        activities: list[str],
        clock: Callable[[], int] = time.perf_counter_ns,
        stream: Any = None,
    ) -> None:
        from cstorch import plugins

        self._input_fn, self._num_epochs, self._limit, self._frequency = (
            input_fn,
            num_epochs,
            steps_per_epoch,
            frequency,
        )
        self._activities = {name: plugins.activity(name)() for name in activities}
        self._clock, self._stream = clock, stream
        self.metrics = Metrics()
        self._occurences: dict[tuple[Any, ...], tuple[BatchSpec, BatchSpecOccurence]] = {}
        self._times = array("q")
        self._start = 0
        self._expected = steps_per_epoch
        self._steps_before = 0

    def run(self) -> Metrics:
        """Build the dataloader and iterate over it."""
        metrics = self.metrics
        with ProgressLine(self._progress, self._stream):
            try:
                before = self._clock()
                loader = self._build()
                metrics.dataloader_build_time = _ns(self._clock() - before)
                self._expected = _least(_length(loader), self._limit)
                self._start = self._clock()
                for epoch in range(self._num_epochs):
                    self._epoch(loader, epoch)
                metrics.is_partial = False
            except KeyboardInterrupt:
                pass
        elapsed = self._clock() - self._start if metrics.epoch_metrics else 0
        metrics.total_time = _ns(elapsed)
        metrics.global_rate = metrics.total_steps * 1e9 / elapsed if elapsed else 0.0
        metrics.batch_specs = dict(self._occurences.values())
        metrics.end_time_ns = time.time_ns()
        return metrics

    def _build(self) -> Iterable[Any]:
        loader = self._input_fn()
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise TypeError(
                f"input_fn returned a {type(loader).__name__}, expected a dataloader or another iterable of batches."
            )
        return loader

    def _epoch(self, loader: Iterable[Any], number: int) -> None:
        epoch = EpochMetrics()
        self.metrics.epoch_metrics.append(epoch)
        self._times = array("q")
        self._steps_before = self.metrics.total_steps
        before, begin = self._clock(), None
        try:
            iterator = iter(loader)
            if iterator is loader and number > 0:  # a generator has ended: the function makes another one
                iterator = iter(self._build())
            begin = self._clock()
            epoch.iterator_creation = _ns(begin - before)
            self._iterate(iterator, epoch, number, begin)
        finally:
            now = self._clock()
            if begin is None:  # interrupted while the iterator was made
                epoch.iterator_creation, begin = _ns(now - before), now
            epoch.total_steps = len(self._times)
            epoch.iteration_time = _ns(now - begin)
            epoch.batch_times = BatchTimes.of(self._times)
            epoch.end_time_ns = time.time_ns()

    def _iterate(self, iterator: Any, epoch: EpochMetrics, number: int, last: int) -> None:
        """The loop that is measured: what it does beside `next` counts as the dataloader's, so it is little."""
        clock, times, frequency = self._clock, self._times, self._frequency
        limit = self._limit or sys.maxsize
        step, seen, occurence = 0, None, BatchSpecOccurence()
        while step < limit:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            now = clock()
            times.append(now - last)
            step += 1
            parts: list[Any] = []
            _describe(batch, parts)
            if parts != seen:
                seen, occurence = parts, self._occurence(batch, parts, number, step)
            occurence.count += 1
            if step % frequency == 0 or step == 1:
                epoch.batch_metrics.append(self._sample(step, now, now - last))
                now = clock()
            last = now

    def _occurence(self, batch: Any, parts: list[Any], epoch: int, step: int) -> BatchSpecOccurence:
        key = tuple(parts)
        if key not in self._occurences:
            first = BatchSpecOccurence(0, epoch + 1, step, self._steps_before + step)
            self._occurences[key] = (BatchSpec.of(batch), first)
        return self._occurences[key][1]

    def _sample(self, step: int, now: int, since: int) -> BatchMetrics:
        total = self._steps_before + step
        values = {name: activity.compute() for name, activity in self._activities.items()}
        return BatchMetrics(step, total, 1e9 / max(since, 1), total * 1e9 / max(now - self._start, 1), values)

    def _progress(self) -> str:
        epochs, step = len(self.metrics.epoch_metrics), len(self._times)
        if not epochs:
            return "building the dataloader ..."
        total, elapsed = self._steps_before + step, self._clock() - self._start
        rate = f"{total * 1e9 / max(elapsed, 1):.1f} steps/s"
        if self._expected is None:
            return f"epoch {epochs} of {self._num_epochs}, step {step}, {rate}"
        done = bar(total / (self._expected * self._num_epochs))
        return f"{done}  epoch {epochs} of {self._num_epochs}, step {step} of {self._expected}, {rate}"


def _length(loader: Any) -> int | None:
    """The length of a dataloader; None when it has none."""
    try:
        return len(loader) or None
    except TypeError:
        return None


def _least(first: int | None, second: int | None) -> int | None:
    return min((number for number in (first, second) if number is not None), default=None)


def _describe(value: Any, parts: list[Any]) -> None:
    """Append what a BatchSpec says of a batch, as hashable parts; at each step, so it is written flat."""
    kind = type(value)
    below: Iterable[Any]
    if kind is tuple or kind is list:
        parts += (kind, len(value))
        below = value
    elif kind is dict:
        parts += (kind, *value)
        below = value.values()
    elif isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        parts += (kind, value.shape, value.dtype)
        return
    else:
        keys, below = nest.children(value) or ((), ())
        parts += (kind, *keys)
    for part in below:
        if type(part) is torch.Tensor:
            parts += (part.shape, part.dtype)
        else:
            _describe(part, parts)


def _ns(count: int) -> np.timedelta64:
    return np.timedelta64(count, "ns")
