"""Clients of a cluster (`cerebras.appliance.cluster.client`): none here."""

from cstorch.absent import anything_of

__getattr__ = anything_of(
    "cerebras.appliance.cluster.client",
    "There is no cluster: programs run on this machine.",
)
