"""What a program says about the cluster it runs on (`cerebras.pytorch.distributed`)."""

from cstorch.distributed.cluster_config import ClusterConfig

__all__ = ["ClusterConfig"]
