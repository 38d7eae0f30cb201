"""What a program says about the cluster it runs on, and who it is in it (`cerebras.pytorch.distributed`)."""

from cstorch.distributed.cluster_config import ClusterConfig
from cstorch.distributed.streaming import (
    get_ordinal,
    get_streaming_batch_size,
    get_streaming_rank,
    get_worker_state,
    is_master_ordinal,
    is_receiver,
    is_streamer,
    num_receivers,
    num_streamers,
    num_tasks,
)

__all__ = [
    "ClusterConfig",
    "get_ordinal",
    "get_streaming_batch_size",
    "get_streaming_rank",
    "get_worker_state",
    "is_master_ordinal",
    "is_receiver",
    "is_streamer",
    "num_receivers",
    "num_streamers",
    "num_tasks",
]
