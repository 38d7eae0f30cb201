"""Constants of the reference's checkpoint files, which have no counterpart here (`storage.constants`)."""

from cstorch.absent import anything_of

__getattr__ = anything_of(
    "cstorch.storage.constants",
    "Files have another layout: read them with cstorch.load, and write the reference's with "
    "`cstorch checkpoint convert --to reference`.",
)
