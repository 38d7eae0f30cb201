"""The GPU backend: traced steps run as they are on a CUDA device, and under torchrun on one for each process."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from cstorch.backends.base import Backend, BackendType
from cstorch.errors import BackendError
from cstorch.tracing import nest

dist: Any = distributed
logger = logging.getLogger("cstorch.gpu")


class GpuBackend(Backend):
    """Runs on a GPU (`cerebras.pytorch.backend("GPU")`).

    Args:
        artifact_dir: Folder for artifacts; default `./cerebras_logs`.
        enable_distributed: Run in all processes that torchrun has started, each on the GPU of its local rank, with a
            batch of its own: gradients are averaged by DistributedDataParallel.
        main_process_id: The rank of the process that writes checkpoints and summaries.
        dist_backend: What processes talk through: "nccl", or "gloo" where a GPU or its driver lacks it.
        init_method: Where they meet, as for `torch.distributed.init_process_group`; by default where torchrun says.
        sync_batchnorm: Let batch norm see the batches of all processes: models are converted to SyncBatchNorm.

    Attributes:
        rank: The rank of this process; 0 when the run is not distributed.
        world_size: The number of processes.

    Raises:
        BackendError: there is no GPU for this process, or PyTorch is not built for one; `enable_distributed` without
            torchrun; a `dist_backend` that PyTorch has not got.
        TypeError, ValueError: an argument of a wrong type or out of range.
    """

    backend_type = BackendType.GPU

    def __init__(
        self,
        artifact_dir: str | os.PathLike[str] | None = None,
        enable_distributed: bool = False,
        main_process_id: int = 0,
        dist_backend: str = "nccl",
        init_method: str | None = None,
        sync_batchnorm: bool = False,
    ) -> None:
        _check_types(main_process_id, dist_backend, init_method)
        self.rank, self.world_size, local_rank = 0, 1, 0
        if enable_distributed:
            self.rank, self.world_size, local_rank = _launched()
            if not 0 <= main_process_id < self.world_size:
                raise ValueError(
                    f"main_process_id is {main_process_id}, expected the rank of one of the {self.world_size} "
                    f"processes: 0 to {self.world_size - 1}."
                )
        elif sync_batchnorm or main_process_id != 0:
            said = "sync_batchnorm=True" if sync_batchnorm else f"main_process_id={main_process_id}"
            raise ValueError(
                f'cstorch.backend("GPU", {said}) concerns several processes, and enable_distributed is False. Say '
                "enable_distributed=True and start the script with torchrun, or leave it out."
            )
        elif int(os.environ.get("WORLD_SIZE", "1")) > 1:
            warnings.warn(
                f"{os.environ['WORLD_SIZE']} processes were launched, and enable_distributed is False: each of them "
                "trains a model of its own and writes the same checkpoints. Say "
                'cstorch.backend("GPU", enable_distributed=True) to train one.',
                stacklevel=4,
            )
        super().__init__(device_of(local_rank), artifact_dir)
        self.is_main_process = self.rank == main_process_id
        self._is_distributed, self._sync_batchnorm = bool(enable_distributed), bool(sync_batchnorm)
        self._made_group = False
        if enable_distributed:
            self._join(dist_backend, init_method)

    def _join(self, dist_backend: str, init_method: str | None) -> None:
        if dist.is_initialized():
            return
        if not dist.is_backend_available(dist_backend):
            known = [name for name in ("nccl", "gloo", "mpi") if dist.is_backend_available(name)]
            raise BackendError(
                f"dist_backend is {dist_backend!r}, which this PyTorch ({torch.__version__}) has not got. It has "
                f"{', '.join(known)}."
            )
        if self.torch_device.type == "cuda":
            torch.cuda.set_device(self.torch_device)
        dist.init_process_group(dist_backend, init_method=init_method, rank=self.rank, world_size=self.world_size)
        self._made_group = True
        logger.info("process %d of %d runs on %s", self.rank, self.world_size, self.torch_device)

    def forward_of(self, model: nn.Module) -> Callable[..., Any]:
        """The model itself, or one that averages its gradients over all processes."""
        if not self._is_distributed:
            return model
        if self._sync_batchnorm:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        if not any(p.requires_grad for p in model.parameters()):
            return model
        ids = [self.torch_device.index] if self.torch_device.type == "cuda" else None
        return _Averaged(DistributedDataParallel(model, device_ids=ids), model)

    def place(self, batch: Any) -> Any:
        """A batch on the GPU."""

        def move(leaf: Any) -> Any:
            return leaf.to(self.torch_device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf

        return nest.map_leaves(move, batch)

    def close(self) -> None:
        """Leave the other processes, and end this backend."""
        super().close()
        if self._made_group and dist.is_initialized():
            dist.destroy_process_group()
        self._made_group = False


class _Averaged:
    """A model whose gradients are averaged; without gradients it is the bare one, which waits for nobody."""

    def __init__(self, averaged: DistributedDataParallel, model: nn.Module) -> None:
        self._averaged, self._model = averaged, model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self._averaged if torch.is_grad_enabled() else self._model)(*args, **kwargs)


def device_of(local_rank: int) -> torch.device:
    """The GPU of a process.

    Args:
        local_rank: Its number among the processes on this host.

    Raises:
        BackendError: there is none; the message says what is missing.
    """
    otherwise = 'To run without a GPU say cstorch.backend("CSX") or cstorch.backend("CPU").'
    if not torch.backends.cuda.is_built():
        raise BackendError(
            f"the GPU backend needs a PyTorch built with CUDA, and this one ({torch.__version__}) is not. Install one "
            f"from https://pytorch.org/get-started/locally. {otherwise}"
        )
    count = torch.cuda.device_count()
    if count == 0:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = "" if shown is None else f" CUDA_VISIBLE_DEVICES is {shown!r}, which may hide them."
        raise BackendError(
            f"PyTorch finds no GPU on this host: the driver is missing or too old for CUDA {torch.version.cuda}, or "
            f"there is none. See what nvidia-smi says.{why} {otherwise}"
        )
    if local_rank >= count:
        raise BackendError(
            f"the process of local rank {local_rank} has no GPU: this host has {count}. Start at most {count} "
            f"processes on it: torchrun --nproc_per_node={count}."
        )
    return torch.device("cuda", local_rank)


def _launched() -> tuple[int, int, int]:
    """Rank, number of processes, and rank on this host, as torchrun has said them."""
    missing = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if not os.environ.get(name, "").isdigit()]
    if missing:
        raise BackendError(
            f"enable_distributed=True needs a run that torchrun has started, and {', '.join(missing)} is not in the "
            "environment. Start it with: torchrun --nproc_per_node=<GPUs of this host> <your script>. For a run in one "
            "process leave enable_distributed out."
        )
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])


def _check_types(main_process_id: Any, dist_backend: Any, init_method: Any) -> None:
    if isinstance(main_process_id, bool) or not isinstance(main_process_id, int):
        raise TypeError(f"main_process_id is {main_process_id!r}, expected the rank of a process as an int.")
    if not isinstance(dist_backend, str):
        raise TypeError(f'dist_backend is {dist_backend!r}, expected a name such as "nccl" or "gloo".')
    if not isinstance(init_method, (str, type(None))):
        raise TypeError(
            f'init_method is {init_method!r}, expected an address such as "tcp://host:29500" or "env://", or None.'
        )
