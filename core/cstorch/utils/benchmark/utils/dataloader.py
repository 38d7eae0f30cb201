"""The metrics of a dataloader benchmark (`cerebras.pytorch.utils.benchmark.utils.dataloader`)."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cstorch.tracing import nest
from cstorch.utils.data.batch_size import infer_batch_size

__all__ = ["BatchMetrics", "BatchSpec", "BatchSpecOccurence", "BatchTimes", "EpochMetrics", "Metrics"]


def _no_time() -> np.timedelta64:
    return np.timedelta64(0, "ns")


@dataclass(frozen=True)
class BatchSpec:
    """Structure, dtypes and shapes of a batch, without its contents.

    Attributes:
        structure: In words, such as `(float32[8, 16], int64[8])`.
        batch_size: The first dimension that all tensors share; None when there is none.
    """

    structure: str
    batch_size: int | None = None

    @classmethod
    def of(cls, batch: Any) -> BatchSpec:
        """The spec of a batch."""
        return cls(_structure(batch), infer_batch_size(batch))


@dataclass
class BatchSpecOccurence:
    """How often batches of one spec came.

    Attributes:
        count: How many there were.
        first_epoch: The epoch of the first, from 1.
        first_epoch_step: Its step in that epoch, from 1.
        first_global_step: Its step over all epochs, from 1.
    """

    count: int = 0
    first_epoch: int = 0
    first_epoch_step: int = 0
    first_global_step: int = 0


@dataclass
class BatchMetrics:
    """Metrics of one sampled batch.

    Attributes:
        epoch_step: The step in its epoch, from 1.
        global_step: The step over all epochs, from 1.
        local_rate: Steps per second, by the time since the batch before.
        global_rate: Steps per second since the first epoch began.
        profile_activities: The values of the activities by name.
        sampling_time_ns: When the batch was sampled, in ns since 1970.
    """

    epoch_step: int
    global_step: int
    local_rate: float
    global_rate: float
    profile_activities: dict[str, Any] = field(default_factory=dict)
    sampling_time_ns: int = field(default_factory=time.time_ns)


@dataclass
class BatchTimes:
    """How long the batches of an epoch took.

    Attributes:
        first: The first batch.
        median: Half of the others took less. So too p90 and p99.
        slowest: The slowest of the others.
        slow_count: How many took more than twice the median.
        slow_time: What these took together beyond the median.
    """

    first: np.timedelta64 = field(default_factory=_no_time)
    median: np.timedelta64 = field(default_factory=_no_time)
    p90: np.timedelta64 = field(default_factory=_no_time)
    p99: np.timedelta64 = field(default_factory=_no_time)
    slowest: np.timedelta64 = field(default_factory=_no_time)
    slow_count: int = 0
    slow_time: np.timedelta64 = field(default_factory=_no_time)

    @classmethod
    def of(cls, times: Any) -> BatchTimes:
        """The summary of the times of all batches of an epoch, in ns."""
        if not len(times):
            return cls()
        first, others = int(times[0]), np.sort(np.asarray(times[1:]))
        if not len(others):
            return cls(first=np.timedelta64(first, "ns"))
        places = [min(int(part * len(others)), len(others) - 1) for part in (0.5, 0.9, 0.99, 1)]
        median = int(others[places[0]])
        slow = others[others > 2 * median]
        beyond = int(slow.sum()) - median * len(slow)
        summary = [first, *(int(others[place]) for place in places), beyond]
        first_time, middle, p90, p99, slowest, slow_time = (np.timedelta64(ns, "ns") for ns in summary)
        return cls(first_time, middle, p90, p99, slowest, len(slow), slow_time)


@dataclass
class EpochMetrics:
    """Metrics of one epoch.

    Attributes:
        iterator_creation: Time to create the iterator of the dataloader.
        iteration_time: Time to iterate over the epoch without the creation of the iterator.
        total_steps: Steps of the epoch.
        batch_metrics: Metrics of the sampled batches.
        start_time_ns: When the epoch began, in ns since 1970.
        end_time_ns: When it ended; 0 before.
        batch_times: How long its batches took.
    """

    iterator_creation: np.timedelta64 = field(default_factory=_no_time)
    iteration_time: np.timedelta64 = field(default_factory=_no_time)
    total_steps: int = 0
    batch_metrics: list[BatchMetrics] = field(default_factory=list)
    start_time_ns: int = field(default_factory=time.time_ns)
    end_time_ns: int = 0
    batch_times: BatchTimes = field(default_factory=BatchTimes)

    @property
    def total_time(self) -> np.timedelta64:
        """Time to create the iterator and to iterate over the epoch."""
        return self.iterator_creation + self.iteration_time


@dataclass
class Metrics:
    """Metrics of one experiment.

    Attributes:
        dataloader_build_time: Time to build the dataloader.
        epoch_metrics: Metrics of each epoch.
        batch_specs: The specs of batches that came -> how often.
        total_time: Time to iterate over all epochs.
        global_rate: Steps per second over all of it.
        is_partial: Whether the benchmark was interrupted.
        start_time_ns: When the experiment began, in ns since 1970.
        end_time_ns: When it ended; 0 before.
    """

    dataloader_build_time: np.timedelta64 = field(default_factory=_no_time)
    epoch_metrics: list[EpochMetrics] = field(default_factory=list)
    batch_specs: dict[BatchSpec, BatchSpecOccurence] = field(default_factory=dict)
    total_time: np.timedelta64 = field(default_factory=_no_time)
    global_rate: float = 0.0
    is_partial: bool = True
    start_time_ns: int = field(default_factory=time.time_ns)
    end_time_ns: int = 0

    @property
    def total_steps(self) -> int:
        """The number of steps of all epochs."""
        return sum(epoch.total_steps for epoch in self.epoch_metrics)

    @property
    def global_sample_rate(self) -> float | None:
        """Samples per second; None unless all batches have the same structure, dtypes, shapes and a batch size."""
        if len(self.batch_specs) != 1:
            return None
        (spec,) = self.batch_specs
        return None if spec.batch_size is None else spec.batch_size * self.global_rate

    def to_dict(self) -> dict[str, Any]:
        """All fields and properties in plain types: times are seconds, batch specs a list."""
        made: dict[str, Any] = _plain(self)
        return made

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """`to_dict` as JSON.

        Args:
            path: A file to write it to as well.
        """
        text = json.dumps(self.to_dict(), indent=2) + "\n"
        if path is not None:
            Path(path).write_text(text)
        return text


def _plain(value: Any) -> Any:
    if isinstance(value, np.timedelta64):
        return int(value.astype("timedelta64[ns]").astype(np.int64)) / 1e9
    if is_dataclass(value):
        found = {part.name: _plain(getattr(value, part.name)) for part in fields(value)}
        if isinstance(value, Metrics):
            specs = [{**_plain(spec), **_plain(times)} for spec, times in value.batch_specs.items()]
            found.update(batch_specs=specs, total_steps=value.total_steps, global_sample_rate=value.global_sample_rate)
        elif isinstance(value, EpochMetrics):
            found["total_time"] = _plain(value.total_time)
        return found
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    return value.tolist() if isinstance(value, (np.generic, np.ndarray, torch.Tensor)) else str(value)


def _structure(value: Any) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        kind = "" if isinstance(value, torch.Tensor) else f"{type(value).__name__} "
        return f"{kind}{str(dtype).removeprefix('torch.')}{list(shape)}"
    parts = nest.children(value)
    if parts is None:
        return type(value).__name__
    keys, values = parts
    inside = [_structure(part) for part in values]
    if type(value) is tuple:
        return f"({', '.join(inside)}{',' if len(inside) == 1 else ''})"
    if type(value) is list:
        return f"[{', '.join(inside)}]"
    named = ", ".join(f"{key!r}: {part}" for key, part in zip(keys, inside, strict=True))
    return f"{{{named}}}" if type(value) is dict else f"{type(value).__name__}({named})"
