"""The appliance of one system among peers: every process traces and runs the program by itself, with its own batches.

The processes are those of the default group of `torch.distributed`. Nobody tells the others what to run, so before
each program that exchanges values they make sure that all are about to run the same.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed, fx

from cstorch._torch_private.collectives import is_connection_error, name_group, unregister_group
from cstorch.appliance.local import LocalAppliance
from cstorch.appliance.state import written_state
from cstorch.appliance.system import checksum
from cstorch.backends import csx
from cstorch.compiler.collectives import GROUP
from cstorch.compiler.compile import compile_program
from cstorch.errors import BackendError
from cstorch.tracing.across_systems import COMBINE
from cstorch.tracing.context import context
from cstorch.tracing.program import Executable, Program

dist: Any = distributed


class _TogetherExecutable:
    """Runs one program in this process while all peers run theirs."""

    def __init__(self, peers: PeersAppliance, program: Program, executable: Any) -> None:
        self._peers, self._executable, self._name = peers, executable, program.name
        self._signature = _signature(program.graph.graph)
        self._written = written_state(program)
        self._ask = torch.empty(2, dtype=torch.int64)
        self.made = executable.made
        self.state: list[torch.Tensor] = []

    @property
    def runs(self) -> int:
        """How often it has run in this process."""
        return int(self._executable.runs)

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run it once."""
        self._peers.expect(self._signature, self._name, self._ask)
        with self._peers.named_failures():
            outputs: list[torch.Tensor] = self._executable(inputs)
        self.state = [inputs[i] for i in self._written]
        return outputs


class PeersAppliance(LocalAppliance):
    """Runs programs in this process, and their collectives with the other processes.

    Args:
        executes: Whether programs will run, not only be compiled.

    Attributes:
        count: The number of processes.
        rank: The rank of this one.

    Raises:
        BackendError: this process is in no group of `torch.distributed`.
    """

    def __init__(self, executes: bool = True) -> None:
        super().__init__(executes)
        if not (dist.is_available() and dist.is_initialized()):
            raise BackendError(
                'cstorch.backend("CSX", peers=True) runs each step together with the other processes of '
                "torch.distributed, and there is no process group. Start the script with torchrun, and call "
                'torch.distributed.init_process_group("gloo") before.'
            )
        self.count: int = dist.get_world_size()
        self.rank: int = dist.get_rank()
        self._loaded: list[weakref.ref[_TogetherExecutable]] = []
        wait = datetime.timedelta(seconds=csx.systems.timeout)
        self._group: Any = dist.new_group(backend="gloo", timeout=wait)
        name_group(GROUP, self._group)

    def load(self, program: Program, example: list[torch.Tensor], compile_dir: Path) -> Executable:
        """Make `program` ready to run, together with the peers where values go between processes."""
        if not any(node.target in COMBINE for node in program.graph.graph.nodes):
            return super().load(program, example, compile_dir)
        made = _TogetherExecutable(self, program, compile_program(program, example, compile_dir))
        self._loaded.append(weakref.ref(made))
        return made

    def expect(self, signature: int, name: str, ask: torch.Tensor) -> None:
        """Wait until all processes are about to run a program.

        Args:
            signature: What tells it from others.
            name: The name of the step.
            ask: Two integers to write to.

        Raises:
            BackendError: they are about to run different ones, or one is gone or hangs.
        """
        ask[0], ask[1] = signature, -signature
        with self.named_failures():
            dist.all_reduce(ask, dist.ReduceOp.MAX, group=self._group)
            if int(ask[0]) == -int(ask[1]):
                return
            names: list[Any] = [None] * self.count
            dist.all_gather_object(names, (name, signature % 10**6), group=self._group)
        told = ", ".join(f"process {rank} {step!r} (program {which})" for rank, (step, which) in enumerate(names))
        raise BackendError(
            f"the processes of the run are about to run different programs: {told}. Their gradients would be mixed "
            "up. Let all take the same steps in the same order: as many batches each, and no decision in a step that "
            "depends on the rank."
        )

    @contextlib.contextmanager
    def named_failures(self) -> Iterator[None]:
        """Within, an error of the connection says what it means for the run.

        Raises:
            BackendError: a process is gone or hangs.
        """
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, BackendError) or not is_connection_error(error):
                raise
            saved = context.last_checkpoint or "none was saved in this process"
            raise BackendError(
                f"another process of the run is gone, or has kept process {self.rank} waiting for "
                f"{csx.systems.timeout:g} seconds ({str(error).splitlines()[0]}). The last checkpoint: {saved}. Start "
                "the run again, with torchrun --max-restarts, and go on from it. How the process ended is in its own "
                "output."
            ) from error

    def check(self) -> None:
        """Compare the state that programs write to with that of the other processes.

        Raises:
            BackendError: it is not the same.
        """
        loaded = [made for made in (known() for known in self._loaded) if made is not None]
        tensors = [tensor for made in loaded for tensor in made.state]
        mine = [checksum(tensor.untyped_storage()) for tensor in tensors]
        every: list[Any] = [None] * self.count
        with self.named_failures():
            dist.all_gather_object(every, mine, group=self._group)
        for rank, theirs in enumerate(every):
            if theirs != every[0]:
                where = [i for i, (a, b) in enumerate(zip(theirs, every[0], strict=False)) if a != b]
                shapes = ", ".join(str(tuple(tensors[i].shape)) for i in where) or "unknown"
                raise BackendError(
                    f"process {rank} has another state than process 0, in tensors of shape {shapes}. The checkpoint "
                    "was not written. Give all processes the same model, seed and optimizer, processors of one kind, "
                    "and let what a hook writes to weights be the same everywhere."
                )

    def close(self) -> None:
        """Leave the group."""
        super().close()
        unregister_group(GROUP)
        if dist.is_initialized():
            dist.destroy_process_group(self._group)


def _signature(graph: fx.Graph) -> int:
    """What the operations of a graph are, and what they exchange; not the batch size, which may differ."""
    digest = hashlib.sha256()
    for node in graph.nodes:
        if node.op == "call_function":
            value = node.meta["val"] if node.target in COMBINE else None
            shape = "" if value is None else f"{tuple(value.shape)} {value.dtype}"
            digest.update(f"{node.target} {shape}\n".encode())
    return int.from_bytes(digest.digest()[:7], "big")
