"""The CSX backend: traced steps become programs that the appliance runs."""

from __future__ import annotations

import os
from typing import Any

import torch

from cstorch.appliance import Appliance
from cstorch.appliance.local import LocalAppliance
from cstorch.backends.base import Backend, BackendType
from cstorch.compiler.flops import FlopMeter
from cstorch.device import CSX
from cstorch.errors import BackendError
from cstorch.tracing.context import context
from cstorch.tracing.program import Executable, Program


class CsxBackend(Backend):
    """Runs traced steps as compiled programs (`cerebras.pytorch.backend("CSX")`).

    Args:
        artifact_dir: Folder for artifacts; default `./cerebras_logs`.
        compile_dir: Folder of the compile cache; default `/opt/cerebras/cached_compile` where that can be
            written, otherwise the user's cache folder.
        compile_only: Trace and compile, execute nothing.
        validate_only: Trace, compile and execute nothing.
        cluster_config: A ClusterConfig. Without a `mgmt_address` that a plugin knows, programs run on one system, in
            this process.

    Raises:
        BackendError: `cluster_config` asks for more than one system, or no plugin knows its `mgmt_address`.
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
    ) -> None:
        super().__init__(CSX, artifact_dir, compile_dir)
        if cluster_config is not None:
            self.cluster_config = cluster_config
        self.compile_only = bool(compile_only)
        self.validate_only = bool(validate_only) or context.validation is not None
        self.is_e2e_execution = not (self.compile_only or self.validate_only)
        self.appliance = _appliance(self.cluster_config)
        self._meter = FlopMeter()

    def load(self, program: Program, example: list[torch.Tensor]) -> Executable | None:
        """Compile `program` for the appliance, as far as this backend's mode goes."""
        if self.validate_only:
            if context.validation is not None:
                context.validation.programs.append(program)
            return None
        executable = self.appliance.load(program, example, self.compile_dir)
        self._meter.add(executable, program.graph)
        return None if self.compile_only else executable

    def flops_done(self) -> int | None:
        """The floating-point operations of all programs that have run."""
        return self._meter.total()

    def close(self) -> None:
        """End the appliance and this backend."""
        try:
            self.appliance.close()
        finally:
            super().close()


def _appliance(cluster_config: Any) -> Appliance:
    """What the programs run on: systems that a plugin connects to, or this process."""
    address = getattr(cluster_config, "mgmt_address", None)
    if address is not None:
        from cstorch import plugins

        connected = plugins.connect_appliance(address, cluster_config)
        if connected is not None:
            return connected
        if "://" in address:
            raise BackendError(
                f"cluster_config.mgmt_address is {address!r}, and no plugin connects to such an address. Install the "
                'plugin for it (pip install cstorch-ray for "ray://..."), or leave mgmt_address out to run in this '
                f"process. Plugins here: {', '.join(map(str, plugins.list())) or 'none'}."
            )
    systems = getattr(cluster_config, "num_csx", 1)
    if systems != 1:
        raise BackendError(f"cluster_config.num_csx is {systems!r}; this version runs on one system. Use num_csx=1.")
    return LocalAppliance()
