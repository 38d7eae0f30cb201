"""ClusterConfig: the cluster that a CSX backend runs on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ClusterConfig:
    """Config details of the Cerebras Wafer-Scale Cluster (`cerebras.pytorch.distributed.ClusterConfig`).

    The embedded appliance runs one system in this process; the other fields are kept for programs that set them.

    Attributes:
        mgmt_address: Address to connect to the appliance.
        credentials_path: Credentials for connecting to the appliance.
        num_csx: Number of systems to run on.
        max_wgt_servers: Number of weight servers.
        max_act_per_csx: Number of activation servers per system.
        num_workers_per_csx: Number of streaming workers per system.
        job_time_sec: Time limit of the appliance jobs in seconds.
        mount_dirs: Local storage to mount to the appliance.
        python_paths: Paths added to the PYTHONPATH of workers.
        job_labels: Equal-sign-separated key-value pairs.
    """

    mgmt_address: str | None = None
    credentials_path: str | None = None
    num_csx: int = 1
    max_wgt_servers: int = 24
    max_act_per_csx: int = 1
    num_workers_per_csx: int = 1
    job_time_sec: int | None = None
    mount_dirs: list[str] | None = None
    python_paths: list[str] | None = None
    job_labels: list[str] | None = None
