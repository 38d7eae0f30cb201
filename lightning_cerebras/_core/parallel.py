"""What makes a strategy of one process for each system: launch, ranks, and what processes say to one another."""

from __future__ import annotations

import atexit
import os
from typing import Any, ClassVar

import torch
from lightning_utilities.core.rank_zero import rank_zero_only
from torch import distributed

dist: Any = distributed


class CSXParallelMixin:
    """Each process drives one CS system with batches of its own; gradients are averaged within the program.

    The processes are started by torchrun, srun or another launcher that Lightning knows, or, with `devices=N` in a
    plain script, by the first of them. A batch is that of one process, as with DDP: the global batch is all of them
    together. Each process reads its share of the data through the DistributedSampler that Lightning inserts. Random
    numbers follow the seed of each process.

    Args:
        start_method: How processes are started where no launcher has: "popen" runs the script again, "fork" copies
            this process, also in a notebook.
        cluster_environment: Set by the Trainer.
        **options: Those of CSXStrategy.

    Raises:
        ValueError: an unknown start method.
    """

    strategy_name = "csx_parallel"
    is_distributed = True  # asked for by the connector before it inserts samplers and reduces what is logged
    _device_arguments: ClassVar[dict[str, Any]] = {}
    script_launcher_class: type
    process_launcher_class: type

    def __init__(self, start_method: str = "popen", cluster_environment: Any = None, **options: Any) -> None:
        if start_method not in ("popen", "fork"):
            raise ValueError(f"CSXParallelStrategy(start_method={start_method!r}): expected 'popen' or 'fork'.")
        super().__init__(**options)
        self.cluster_environment = cluster_environment
        self.num_nodes = 1
        self._start_method = start_method
        self._backend_options["peers"] = True  # type: ignore[attr-defined]

    # -- who this process is -----------------------------------------------------------------------------

    @property
    def root_device(self) -> torch.device:
        """The device of this process."""
        return torch.device("csx", 0)

    @property
    def num_processes(self) -> int:
        """Processes on this host."""
        return len(self.parallel_devices or ())  # type: ignore[attr-defined]

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Which share of the data this process reads."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}  # type: ignore[attr-defined]

    def use_devices(self, devices: int) -> None:
        """Each process has one system, however many processes there are.

        Raises:
            ValueError: the strategy's `cluster_config` has more systems.
        """
        config = self._backend_options.get("cluster_config")  # type: ignore[attr-defined]
        if config is not None and config.num_csx != 1:
            raise ValueError(
                f"strategy='csx_parallel' with a cluster_config of num_csx={config.num_csx}: here every process drives "
                "one system. Use num_csx=1, and as many processes as systems; or strategy='csx' with devices=N."
            )

    def set_world_ranks(self) -> None:
        """Tell the cluster environment and Lightning's rank_zero functions."""
        environment = self.cluster_environment
        if environment is not None:
            environment.set_global_rank(environment.node_rank() * self.num_processes + environment.local_rank())
            environment.set_world_size(self.num_nodes * self.num_processes)
            rank_zero_only.rank = environment.global_rank()  # type: ignore[attr-defined]

    # -- start -------------------------------------------------------------------------------------------

    def _configure_launcher(self) -> None:
        if self._start_method == "popen":
            launch: Any = self.script_launcher_class
            self._launcher = launch(self.cluster_environment, self.num_processes, self.num_nodes)
        else:
            fork: Any = self.process_launcher_class
            self._launcher = fork(self, start_method="fork")

    def setup_environment(self) -> None:
        """Join the other processes, and make the backend."""
        self.set_world_ranks()
        if not dist.is_initialized():
            environment = self.cluster_environment
            os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = environment.main_address, str(environment.main_port)
            dist.init_process_group("gloo", rank=environment.global_rank(), world_size=environment.world_size())
            atexit.register(_leave)  # not at teardown: another fit may follow
        super().setup_environment()  # type: ignore[misc]

    def _use_existing(self, backend: Any) -> None:
        if not getattr(backend, "peers", False):
            raise ValueError(
                "the program has made a backend that does not share its steps with the other processes, and "
                "strategy='csx_parallel' needs one that does. Let the Trainer make it, or say "
                "cstorch.backend('CSX', peers=True) after torch.distributed.init_process_group."
            )
        self._backend = backend

    def setup(self, trainer: Any) -> None:
        """Set up as on one system, with the parameters and buffers of the first process.

        Raises:
            ValueError: `sync_batchnorm=True`.
        """
        if self._layer_sync is not None:  # type: ignore[attr-defined]
            raise ValueError(
                "sync_batchnorm=True is not there with strategy='csx_parallel': batch norm sees the batch of its "
                "process, and its running statistics are averaged over processes. Use strategy='csx' with devices=N, "
                "or a layer that does not look across samples."
            )
        super().setup(trainer)  # type: ignore[misc]

    def model_to_device(self) -> None:
        """Prepare the module for tracing, with the values of the first process."""
        super().model_to_device()  # type: ignore[misc]
        with torch.no_grad():
            for tensor in self.model.state_dict(keep_vars=True).values():  # type: ignore[attr-defined]
                if isinstance(tensor, torch.Tensor):
                    value = tensor.detach().cpu().contiguous()
                    dist.broadcast(value, 0)
                    tensor.copy_(value)

    # -- what processes say to one another ---------------------------------------------------------------

    def barrier(self, name: str | None = None) -> None:
        """Wait for all processes."""
        if dist.is_initialized():
            dist.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The object that process `src` calls this with."""
        if not dist.is_initialized():
            return obj
        held = [obj]
        dist.broadcast_object_list(held, src)
        return held[0]

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """The mean, the sum or another reduction of a tensor over all processes; anything else as it is."""
        if not isinstance(tensor, torch.Tensor) or not dist.is_initialized():
            return tensor
        total = tensor.detach().cpu().clone()
        mean = reduce_op is None or str(reduce_op).lower() in ("mean", "avg", "redoptype.avg")
        if isinstance(reduce_op, str) and not mean:
            reduce_op = getattr(dist.ReduceOp, reduce_op.upper())
        dist.all_reduce(total, dist.ReduceOp.SUM if mean else reduce_op, group=group)
        return (total / dist.get_world_size(group)).to(tensor.device) if mean else total.to(tensor.device)

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        """The tensors of all processes, stacked; in a traced step, a part of the program.

        Raises:
            ValueError: `sync_grads=True`, or a group in a traced step.
        """
        if sync_grads:
            raise ValueError(
                "all_gather(sync_grads=True) is not there with strategy='csx_parallel': no gradient goes through it. "
                "Compute the loss of each process's own samples; the gradients are averaged."
            )
        count = dist.get_world_size(group)
        if self._backend.is_tracing:
            if group not in (None, dist.group.WORLD):
                raise ValueError("all_gather(group=...) in a traced step: only the group of all processes is there.")
            from cstorch.tracing.across_systems import gather_systems

            with torch.no_grad():
                return gather_systems(tensor.detach().unsqueeze(0), 0, count)  # type: ignore[no-any-return]
        mine = tensor.detach().cpu().contiguous()
        parts = [torch.empty_like(mine) for _ in range(count)]
        dist.all_gather(parts, mine, group=group)
        return torch.stack(parts).to(tensor.device)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
