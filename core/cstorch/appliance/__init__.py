"""An Executable runs: in this process, or on several systems."""

from cstorch.appliance.base import Appliance

__all__ = ["Appliance"]
