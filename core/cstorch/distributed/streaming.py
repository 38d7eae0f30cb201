"""Who this process is in a run: the controller, or a worker that streams batches to a system."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch.distributed as dist

from cstorch.tracing.context import context


@dataclass(frozen=True)
class DataLoaderCheckpoint:
    """What a worker has streamed in this run (`cerebras.pytorch.utils.data.DataLoaderCheckpoint`).

    Attributes:
        global_worker_id: ID among all workers of all systems.
        local_worker_id: ID among the workers of the same system.
        total_num_workers: Workers of all systems.
        num_workers_per_csx: Workers of one system.
        num_csx: Systems.
        wse_id: ID of the system that this worker feeds.
        appliance_step: Steps of the run at the checkpoint.
        worker_step: Batches of this worker among them.
        samples_streamed: `worker_step` times the batch size of a system.
    """

    global_worker_id: int
    local_worker_id: int
    total_num_workers: int
    num_workers_per_csx: int
    num_csx: int
    wse_id: int
    appliance_step: int
    worker_step: int
    samples_streamed: int


@dataclass(frozen=True)
class Streamer:
    """The identity of a worker.

    Attributes:
        rank: ID among all workers of all systems.
        num_workers_per_csx: Workers of one system.
        num_csx: Systems.
    """

    rank: int = 0
    num_workers_per_csx: int = 1
    num_csx: int = 1

    @property
    def total(self) -> int:
        """Workers of all systems."""
        return self.num_workers_per_csx * self.num_csx

    @property
    def local(self) -> int:
        """ID among the workers of the same system."""
        return self.rank % self.num_workers_per_csx

    def first_step(self, before: int) -> int:
        """The first step of a run that takes a batch of this worker; earlier runs had `before` steps.

        Step t of all runs together takes worker t mod n, so that a run that goes on leaves nobody out of turn.
        """
        return (self.local - before) % self.num_workers_per_csx

    def checkpoint(self, step: int, batch_size: int | None, before: int = 0) -> DataLoaderCheckpoint:
        """What this worker has streamed when the run has done `step` steps, and earlier runs `before`."""
        mine = max(0, (step - self.first_step(before) + self.num_workers_per_csx - 1) // self.num_workers_per_csx)
        return DataLoaderCheckpoint(
            global_worker_id=self.rank,
            local_worker_id=self.local,
            total_num_workers=self.total,
            num_workers_per_csx=self.num_workers_per_csx,
            num_csx=self.num_csx,
            wse_id=self.rank // self.num_workers_per_csx,
            appliance_step=step,
            worker_step=mine,
            samples_streamed=mine * (batch_size or 0),
        )


_streamer: Streamer | None = None
_checkpoint: DataLoaderCheckpoint | None = None


class streaming_as:  # noqa: N801  entered for every batch: a generator would take three times as long
    """Within, this process is that worker.

    Args:
        streamer: The worker, or None for a process that is none.
    """

    def __init__(self, streamer: Streamer | None) -> None:
        self._streamer = streamer

    def __enter__(self) -> None:
        global _streamer
        self._before, _streamer = _streamer, self._streamer

    def __exit__(self, *error: object) -> None:
        global _streamer
        _streamer = self._before


@contextlib.contextmanager
def at_checkpoint(state: DataLoaderCheckpoint) -> Iterator[None]:
    """Within, `get_worker_state` gives `state`."""
    global _checkpoint
    before, _checkpoint = _checkpoint, state
    try:
        yield
    finally:
        _checkpoint = before


def get_worker_state() -> DataLoaderCheckpoint:
    """What this worker has streamed (`cerebras.pytorch.distributed.get_worker_state`).

    Returns:
        Its ids, its steps and its samples up to the checkpoint step.

    Raises:
        RuntimeError: called anywhere but in the `state_dict` of a restartable dataloader.
    """
    if _checkpoint is None:
        raise RuntimeError(
            "get_worker_state() was called outside the state_dict() of a restartable dataloader, the only place where "
            "the state of a worker is well defined. Call it there."
        )
    return _checkpoint


def current_streamer() -> Streamer:
    """Who this process is as a worker; the only one of one system where it is none."""
    return _streamer or Streamer()


def is_streamer() -> bool:
    """Whether this process runs an input function for a system."""
    return _streamer is not None


def is_receiver() -> bool:
    """Whether this process receives activations: never, since the controller does."""
    return False


def num_streamers() -> int:
    """Workers of all systems; 1 where this process is none."""
    return 1 if _streamer is None else _streamer.total


def num_receivers() -> int:
    """Processes that receive activations."""
    return 1


def num_tasks() -> int:
    """Workers of all systems, or the processes of `torch.distributed`, or 1."""
    if _streamer is not None:
        return _streamer.total
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def get_streaming_rank() -> int:
    """The ID of this worker among all workers; 0 where this process is none."""
    return 0 if _streamer is None else _streamer.rank


def get_ordinal() -> int:
    """The ID of this task among `num_tasks`."""
    if _streamer is not None:
        return _streamer.rank
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def is_master_ordinal(local: bool = False) -> bool:
    """Whether this is the first task.

    Args:
        local: Among the tasks of the same system.
    """
    if local and _streamer is not None:
        return _streamer.rank % _streamer.num_workers_per_csx == 0
    return get_ordinal() == 0


def get_rank() -> int:
    """The same as `get_ordinal`."""
    return get_ordinal()


def get_world_size() -> int:
    """The same as `num_tasks`."""
    return num_tasks()


def get_streaming_batch_size(effective_batch_size: int, global_rank: int | None = None) -> int:
    """The batch size that a worker yields for a given batch size over all systems.

    Args:
        effective_batch_size: Samples of one step on all systems.
        global_rank: The ID of a worker among all, for a process that is none: what that one yields. All workers yield
            alike, so it only says that a worker is meant. Without it such a process gets the whole batch.

    Raises:
        ValueError: it cannot be divided among the systems; there is no such worker.
    """
    config = getattr(context.backend, "cluster_config", None)
    systems, workers = 1, 1
    if _streamer is not None:
        systems, workers = _streamer.num_csx, _streamer.total
    elif global_rank is not None and config is not None:
        systems, workers = config.num_csx, config.num_csx * config.num_workers_per_csx
    if global_rank is not None and not 0 <= global_rank < workers:
        raise ValueError(f"global_rank is {global_rank}, expected the ID of one of {workers} workers.")
    if effective_batch_size < 1 or effective_batch_size % systems:
        raise ValueError(
            f"a batch of {effective_batch_size} samples cannot be divided among {systems} systems. "
            f"Use a multiple of {systems}."
        )
    return effective_batch_size // systems
