"""The CSX backend: traced steps become programs that the appliance runs."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

from cstorch.appliance.connect import connect, launched_processes
from cstorch.backends.base import Backend, BackendType
from cstorch.compiler.flops import FlopMeter
from cstorch.device import CSX
from cstorch.distributed.cluster_config import ClusterConfig
from cstorch.tracing.across_systems import Systems
from cstorch.tracing.context import context
from cstorch.tracing.program import Executable, Program

logger = logging.getLogger("cstorch.systems")


class CsxBackend(Backend):
    """Runs traced steps as compiled programs (`cerebras.pytorch.backend("CSX")`).

    Args:
        artifact_dir: Folder for artifacts; default `./cerebras_logs`.
        compile_dir: Folder of the compile cache; default `/opt/cerebras/cached_compile` where that can be
            written, otherwise the user's cache folder.
        compile_only: Trace and compile one step, execute nothing, and show the report of it.
        validate_only: Trace one step, compile and execute nothing, and show the report of it.
        cluster_config: A ClusterConfig. By default one system, which is this process; under torchrun, one for each of
            its processes, of which the first runs the program and the others never return from here.
        peers: Ours, beyond the specification. Every process of the default group of `torch.distributed` goes through
            the program by itself, as one system with batches of its own; gradients, and state that steps change, are
            averaged over all. What a step returns is of this process's batch.

    Raises:
        TypeError: `cluster_config` is none.
        BackendError: the systems that `cluster_config` asks for cannot be had, or there are no peers.
        PluginError: a plugin knows the `mgmt_address` and cannot connect to it.
    """

    backend_type = BackendType.CSX

    def __init__(
        self,
        artifact_dir: str | os.PathLike[str] | None = None,
        compile_dir: str | os.PathLike[str] | None = None,
        compile_only: bool = False,
        validate_only: bool = False,
        cluster_config: Any = None,
        peers: bool = False,
    ) -> None:
        super().__init__(CSX, artifact_dir, compile_dir)
        if cluster_config is None:
            cluster_config = ClusterConfig(num_csx=1 if peers else launched_processes())
        if not isinstance(cluster_config, ClusterConfig):
            raise TypeError(f"cluster_config is a {type(cluster_config).__name__}, expected a ClusterConfig.")
        self.cluster_config = cluster_config
        self.compile_only = bool(compile_only)
        self.validate_only = bool(validate_only) or context.validation is not None
        self.is_e2e_execution = not (self.compile_only or self.validate_only)
        self.peers = peers
        self.appliance = connect(cluster_config, compile_dir, self.is_e2e_execution, peers)
        if peers:
            self.is_main_process = self.appliance.rank == 0  # type: ignore[attr-defined]
            count = self.appliance.count  # type: ignore[attr-defined]
            self.systems = Systems(count, share_batch=False) if count > 1 else None
        if cluster_config.num_csx > 1 and self.appliance.divides_batches:
            self.systems = Systems(cluster_config.num_csx, share_batch=True)
            labels = "".join(f", {label}" for label in cluster_config.job_labels or ())
            logger.info("batches are divided among %d systems%s", cluster_config.num_csx, labels)
        self._meter = FlopMeter()

    def load(self, program: Program, example: list[torch.Tensor]) -> Executable | None:
        """Compile `program` for the appliance, as far as this backend's mode goes."""
        if self.validate_only:
            if context.validation is not None:
                context.validation.programs.append(program)
            return None
        executable = self.appliance.load(program, example, self.compile_dir)
        self._meter.add(executable, program.graph)
        if not self.compile_only:
            return executable
        if self.report.entries:
            self.report.entries[-1].made = getattr(executable, "made", None)
        return None

    def flops_done(self) -> int | None:
        """The floating-point operations of all programs that have run."""
        return self._meter.total()

    def check_systems(self) -> None:
        """Compare the state on all systems; the executor calls it at checkpoint steps.

        Raises:
            BackendError: it is not the same.
        """
        self.appliance.check()

    def close(self) -> None:
        """End the appliance and this backend."""
        try:
            self.appliance.close()
        finally:
            super().close()
