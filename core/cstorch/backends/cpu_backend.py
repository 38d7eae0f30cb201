"""The CPU backend: traced steps run as they are, in eager PyTorch."""

from __future__ import annotations

import os

import torch

from cstorch.backends.base import Backend, BackendType


class CpuBackend(Backend):
    """Runs on the host (`cerebras.pytorch.backend("CPU")`).

    Args:
        artifact_dir: Folder for artifacts; default `./cerebras_logs`.
    """

    backend_type = BackendType.CPU

    def __init__(self, artifact_dir: str | os.PathLike[str] | None = None) -> None:
        super().__init__(torch.device("cpu"), artifact_dir)
