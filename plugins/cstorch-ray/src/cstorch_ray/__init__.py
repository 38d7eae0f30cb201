"""The plugin: `ClusterConfig(mgmt_address="ray://...")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cstorch.plugins import hookimpl

if TYPE_CHECKING:
    from cstorch.appliance import Appliance
    from cstorch.distributed import ClusterConfig


@hookimpl
def cstorch_connect_appliance(mgmt_address: str, cluster_config: ClusterConfig) -> Appliance | None:
    """Connect to the Ray cluster of an address that begins with ray://."""
    if not mgmt_address.startswith("ray://"):
        return None
    from cstorch_ray.appliance import RayAppliance  # Ray takes a second to import: not before it is used

    return RayAppliance(mgmt_address, cluster_config)
