"""The CSX backend: traced steps become programs that the appliance runs."""

from __future__ import annotations

import os
from typing import Any

import torch

from cstorch.appliance.local import LocalAppliance
from cstorch.backends import csx
from cstorch.backends.base import Backend, BackendType
from cstorch.device import CSX, native_guard
from cstorch.distributed import ClusterConfig
from cstorch.errors import BackendError
from cstorch.tracing.program import Executable, Program


class CsxBackend(Backend):
    """Runs traced steps as compiled programs (`cerebras.pytorch.backend("CSX")`).

    Args:
        artifact_dir: Folder for artifacts; default `./cerebras_logs`.
        compile_dir: Folder of the compile cache; default `/opt/cerebras/cached_compile` where that can be
            written, otherwise the user's cache folder.
        compile_only: Trace and compile, execute nothing.
        validate_only: Trace, compile and execute nothing.
        cluster_config: A ClusterConfig; one system is what this version runs on.

    Raises:
        BackendError: `cluster_config` asks for more than one system.
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
        super().__init__(CSX, artifact_dir)
        systems = getattr(cluster_config, "num_csx", 1)
        if systems != 1:
            raise BackendError(
                f"cluster_config.num_csx is {systems!r}; this version runs on one system. Use num_csx=1."
            )
        self.cluster_config = ClusterConfig() if cluster_config is None else cluster_config
        self.compile_only = bool(compile_only)
        self.validate_only = bool(validate_only)
        self.is_e2e_execution = not (self.compile_only or self.validate_only)
        self.appliance = LocalAppliance(compile_dir)
        native_guard.install(self.appliance.compile_dir)

    @property
    def retraces(self) -> bool:  # type: ignore[override]
        """The flag `debug.retrace_every_iteration`."""
        return csx.debug.retrace_every_iteration  # type: ignore[no-any-return]

    def load(self, program: Program, example: list[torch.Tensor]) -> Executable | None:
        """Compile `program` for the appliance, as far as this backend's mode goes."""
        if self.validate_only:
            return None
        executable = self.appliance.load(program, example)
        return None if self.compile_only else executable
