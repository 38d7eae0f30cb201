"""The backend: each traced step becomes one XLA executable."""

from __future__ import annotations

import os

import torch
from cstorch.backend import Backend, BackendType
from cstorch.device import CSX
from cstorch.tracing.program import Executable, Program

from cstorch_jax.executable import XlaExecutable


class JaxBackend(Backend):
    """Runs traced steps through JAX on the cpu: `cstorch.backend("jax")`.

    Args:
        artifact_dir: Folder for artifacts; default `./cerebras_logs`.
        compile_dir: Folder of the compile cache of cstorch, where the small libraries that every backend needs are.
    """

    backend_type = BackendType.CSX

    def __init__(
        self,
        artifact_dir: str | os.PathLike[str] | None = None,
        compile_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(CSX, artifact_dir, compile_dir)

    def load(self, program: Program, example: list[torch.Tensor]) -> Executable:
        """Lower the graph of `program` to JAX and compile it with XLA."""
        return XlaExecutable(program, example)
