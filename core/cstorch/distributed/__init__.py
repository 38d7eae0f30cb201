"""What a program says about the cluster it runs on, and who it is in it (`cerebras.pytorch.distributed`)."""

from cstorch.distributed import cluster_resolver
from cstorch.distributed.cluster_config import ClusterConfig
from cstorch.distributed.cluster_resolver import service_resolver
from cstorch.distributed.streaming import (
    get_ordinal,
    get_rank,
    get_streaming_batch_size,
    get_streaming_rank,
    get_worker_state,
    get_world_size,
    is_master_ordinal,
    is_receiver,
    is_streamer,
    num_receivers,
    num_streamers,
    num_tasks,
)
from cstorch.distributed.worker_cache import WORKER_CACHE_ROOT, hit_worker_cache_limit

__all__ = [
    "WORKER_CACHE_ROOT",
    "ClusterConfig",
    "cluster_resolver",
    "get_ordinal",
    "get_rank",
    "get_streaming_batch_size",
    "get_streaming_rank",
    "get_worker_state",
    "get_world_size",
    "hit_worker_cache_limit",
    "is_master_ordinal",
    "is_receiver",
    "is_streamer",
    "num_receivers",
    "num_streamers",
    "num_tasks",
    "service_resolver",
]
