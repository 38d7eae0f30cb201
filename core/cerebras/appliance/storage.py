"""Readers and writers of checkpoints (`cerebras.appliance.storage`): none here."""

from cstorch.absent import anything_of

__getattr__ = anything_of(
    "cerebras.appliance.storage",
    "Use cstorch.load and cstorch.save with paths of files; copy from S3 first.",
)
