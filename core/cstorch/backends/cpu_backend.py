"""The CPU backend: traced steps run as they are, in eager PyTorch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from cstorch.backends.base import Backend, BackendType
from cstorch.distributed.cluster_config import ClusterConfig


class CpuBackend(Backend):
    """Runs on the host (`cerebras.pytorch.backend("CPU")`).

    Args:
        artifact_dir: Folder for artifacts; default `./cerebras_logs`.
        cluster_config: A ClusterConfig, taken so that one line makes either backend. There are no systems and no
            input workers here; its `python_paths` and `job_time_sec` apply.
        mixed_precision: Call compiled models within `cstorch.amp.autocast()`.

    Raises:
        TypeError: `cluster_config` is none.
    """

    backend_type = BackendType.CPU

    def __init__(
        self,
        artifact_dir: str | os.PathLike[str] | None = None,
        cluster_config: ClusterConfig | None = None,
        mixed_precision: bool = False,
    ) -> None:
        super().__init__(torch.device("cpu"), artifact_dir)
        if not isinstance(cluster_config, (ClusterConfig, type(None))):
            raise TypeError(f"cluster_config is a {type(cluster_config).__name__}, expected a ClusterConfig.")
        self.cluster_config = cluster_config
        self.mixed_precision = bool(mixed_precision)

    def forward_of(self, model: nn.Module) -> Callable[..., Any]:
        """The model itself; within autocast where `mixed_precision` says so."""
        if not self.mixed_precision:
            return model
        from cstorch import amp  # it knows the backend

        def forward(*args: Any, **kwargs: Any) -> Any:
            with amp.autocast():
                return model(*args, **kwargs)

        return forward
