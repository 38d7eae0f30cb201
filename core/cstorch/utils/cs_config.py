"""`cstorch.utils.CSConfig`: the ClusterConfig of releases before 2.3, with what has moved into flags since."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from cstorch.distributed.cluster_config import ClusterConfig
from cstorch.legacy import warn_of_old


@dataclass
class CSConfig(ClusterConfig):
    """A ClusterConfig under its old name; None stands for the default of every field.

    What it has beyond a ClusterConfig says nothing to the embedded appliance.

    Attributes:
        mgmt_namespace, job_priority, disable_version_check, fabric_type_blacklist: Of the cluster's management.
        debug_args, transfer_processes: Flags of `backends.csx` now.
        precision_opt_level: 0, 1 or 2, which programs read.
    """

    mgmt_namespace: str | None = None
    debug_args: str | None = None
    transfer_processes: int | None = None
    job_priority: str | None = None
    disable_version_check: bool = False
    fabric_type_blacklist: list[str] | None = None
    precision_opt_level: int = 1

    def __post_init__(self) -> None:
        warn_of_old("cstorch.utils.CSConfig", "Use cstorch.distributed.ClusterConfig.")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, _DEFAULTS[name] if value is None and name in _DEFAULTS else value)


_DEFAULTS = {field.name: field.default for field in fields(ClusterConfig)}
_OWN = frozenset(field.name for field in fields(CSConfig)) - _DEFAULTS.keys()
