"""Which appliance a ClusterConfig asks for: this process, systems beside it, systems elsewhere, or a plugin's."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from cstorch.appliance.base import Appliance
from cstorch.appliance.local import LocalAppliance
from cstorch.backends import csx
from cstorch.errors import BackendError
from cstorch.tracing.program import Executable, Program


def connect(config: Any, compile_dir: str | os.PathLike[str] | None, executes: bool, peers: bool = False) -> Appliance:
    """The appliance for `config`. Under torchrun, a process of rank above 0 becomes a system and ends here.

    Args:
        config: A ClusterConfig.
        compile_dir: The folder of the compile cache, as it was asked for.
        executes: Whether programs will run, not only be compiled.
        peers: Whether every process of `torch.distributed` is a system that goes through the program by itself.

    Raises:
        BackendError: the systems that it asks for cannot be had.
        PluginError: a plugin knows the `mgmt_address` and cannot connect to it.
        SystemExit: in a system, when the run is over.
    """
    address = config.mgmt_address
    if address is not None and address.startswith("cuda://"):
        from cstorch.appliance.cuda import CudaAppliance, device_at

        if config.num_csx != 1:
            raise BackendError(
                f"cluster_config.mgmt_address is {address!r}, which is one GPU, and num_csx is {config.num_csx}. Use "
                'num_csx=1; for several GPUs cstorch.backend("GPU", enable_distributed=True) under torchrun.'
            )
        return CudaAppliance(device_at(address)) if executes else LocalAppliance(executes)
    if address is not None:
        from cstorch import plugins

        connected = plugins.connect_appliance(address, config)
        if connected is not None:
            return connected
        if "://" in address:
            raise BackendError(
                f"cluster_config.mgmt_address is {address!r}, and no plugin connects to such an address. Install the "
                'plugin for it (pip install cstorch-ray for "ray://..."), or leave mgmt_address out to run on this '
                f"host. Plugins here: {', '.join(map(str, plugins.list())) or 'none'}."
            )
    if peers:
        from cstorch.appliance.peers import PeersAppliance  # torch.distributed, which few programs need

        if config.num_csx != 1:
            raise BackendError(
                f"peers=True with cluster_config.num_csx={config.num_csx}: each process drives one system. Use "
                "num_csx=1 and as many processes as systems."
            )
        return PeersAppliance(executes)
    launched = launched_processes()
    if launched not in (1, config.num_csx):
        raise BackendError(
            f"cluster_config.num_csx is {config.num_csx}, and {launched} processes were launched (WORLD_SIZE="
            f"{launched} in the environment): each of them is a system. Use num_csx={launched}, or launch "
            f"{config.num_csx} processes."
        )
    if config.num_csx == 1:
        return LocalAppliance(executes)
    if not executes:
        return _CompilesForSeveral(config.num_csx)
    return _several(config, compile_dir, launched)


class _CompilesForSeveral(LocalAppliance):
    """Compiles programs for several systems, which are not there."""

    divides_batches = True

    def __init__(self, count: int) -> None:
        super().__init__(executes=False)
        self._count = count

    def load(self, program: Program, example: list[torch.Tensor], compile_dir: Path) -> Executable:
        """Compile `program`, or load it from the cache."""
        from cstorch._torch_private.collectives import group_to_compile_for
        from cstorch.compiler.collectives import GROUP

        with group_to_compile_for(GROUP, self._count):
            return super().load(program, example, compile_dir)


def launched_processes() -> int:
    """How many processes torchrun, or another launcher that speaks its language, has started for this run."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def _several(config: Any, compile_dir: str | os.PathLike[str] | None, launched: int) -> Appliance:
    from cstorch.appliance import meeting
    from cstorch.appliance.group import options_now
    from cstorch.appliance.several import SystemsAppliance
    from cstorch.appliance.system import serve

    secret = meeting.read_secret(config.credentials_path)
    wait = csx.systems.start_timeout
    if launched > 1:
        host = meeting.own_address(os.environ.get("MASTER_ADDR", meeting.LOOPBACK))
        store, rank, size = meeting.torchrun_store(wait)
        if rank > 0:
            options = options_now(compile_dir)
            serve(store, rank, size, host, secret, options)
            sys.exit(0)
        return SystemsAppliance(size, secret, store=lambda: store, host=host)
    if config.mgmt_address is not None:
        host = meeting.own_address(meeting.split_address(config.mgmt_address)[0])
        store = meeting.listening_store(config.mgmt_address, config.num_csx, wait)
        return SystemsAppliance(config.num_csx, secret, store=lambda: store, host=host)
    return SystemsAppliance(config.num_csx, None, compile_dir, config.python_paths, config.restart_attempts)


def join(address: str, credentials: str | None, compile_dir: str | None) -> int:
    """Be a system of the run whose controller listens at `address`, until it ends; the rank that it was given.

    Args:
        address: "host:port", the controller's `mgmt_address`.
        credentials: The file with the shared secret.
        compile_dir: The folder of the compile cache.

    Raises:
        BackendError: the controller does not answer, or does not let this system in.
    """
    from cstorch.appliance import meeting
    from cstorch.appliance.group import options_now
    from cstorch.appliance.system import serve

    secret = meeting.read_secret(credentials)
    wait = csx.systems.start_timeout
    store = meeting.joining_store(address, wait)
    rank = int(store.add("systems", 1))
    size = int(store.get("size"))
    if rank >= size:
        raise BackendError(f"the run at {address} has its {size - 1} systems beside the controller already.")
    options = options_now(compile_dir)
    host = meeting.own_address(meeting.split_address(address)[0])
    serve(store, rank, size, host, secret, options)
    return rank
