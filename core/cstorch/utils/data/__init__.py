"""Dataloaders and the loop over them (`cerebras.pytorch.utils.data`)."""

from cstorch.distributed.streaming import DataLoaderCheckpoint
from cstorch.utils.data import data_executor, sampler, utils
from cstorch.utils.data.dataloader import DataLoader
from cstorch.utils.data.executor import DataExecutor
from cstorch.utils.data.num_steps import compute_num_steps
from cstorch.utils.data.restartable import RestartableDataLoader
from cstorch.utils.data.sampler import DistributedSampler
from cstorch.utils.data.schedule import Schedule
from cstorch.utils.data.synthetic import SyntheticDataset

__all__ = [
    "DataExecutor",
    "DataLoader",
    "DataLoaderCheckpoint",
    "DistributedSampler",
    "RestartableDataLoader",
    "Schedule",
    "SyntheticDataset",
    "compute_num_steps",
    "data_executor",
    "sampler",
    "utils",
]
