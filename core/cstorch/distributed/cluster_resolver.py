"""The tasks that stream data, as programs for old releases ask for them (`distributed.service_resolver`)."""

from __future__ import annotations

from dataclasses import dataclass

from cstorch.distributed import streaming


@dataclass(frozen=True)
class TaskSpec:
    """One task.

    Attributes:
        rank: ID among all tasks.
        local_rank: ID among the tasks of the same system.
        wse_id: ID of the system that it feeds.
        node_name: The host; "localhost" for all.
    """

    rank: int
    local_rank: int
    wse_id: int
    node_name: str = "localhost"


@dataclass(frozen=True)
class ClusterSpec:
    """All tasks.

    Attributes:
        tasks: The tasks by rank.
        rank: That of this process.
        num_csx: Systems.
        num_workers_per_csx: Tasks of one system.
    """

    tasks: list[TaskSpec]
    rank: int
    num_csx: int
    num_workers_per_csx: int

    def task(self, rank: int | None = None) -> TaskSpec:
        """A task.

        Args:
            rank: Default that of this process.
        """
        return self.tasks[self.rank if rank is None else rank]


@dataclass(frozen=True)
class ServiceResolver:
    """Knows the tasks.

    Attributes:
        cluster_spec: They.
    """

    cluster_spec: ClusterSpec


def service_resolver() -> ServiceResolver:
    """The tasks that stream data; one task, this process, where it is no streamer."""
    me = streaming.current_streamer()
    each = me.num_workers_per_csx
    tasks = [TaskSpec(rank, rank % each, rank // each) for rank in range(me.total)]
    return ServiceResolver(ClusterSpec(tasks, me.rank, me.num_csx, each))
