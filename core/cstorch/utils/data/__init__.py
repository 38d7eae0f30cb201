"""Dataloaders and the loop over them (`cerebras.pytorch.utils.data`)."""

from cstorch.utils.data.dataloader import DataLoader
from cstorch.utils.data.executor import DataExecutor
from cstorch.utils.data.schedule import Schedule

__all__ = ["DataExecutor", "DataLoader", "Schedule"]
