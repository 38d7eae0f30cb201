"""The appliance that is a GPU of this host: whole steps as one library on the device, replayed as a CUDA graph.

The host's tensors stay where they are. The state has a replica on the device: what the host has written since the
last run goes there before a run, and what the program has written comes back after it.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from cstorch.appliance.base import Appliance
from cstorch.appliance.portable import PortableProgram
from cstorch.appliance.state import StateTable, written_state
from cstorch.compiler.compile import interpreting, place_of, warn_of_failure
from cstorch.compiler.interpreter import InterpretedExecutable
from cstorch.compiler.made import Made
from cstorch.compiler.passes import graphs_of, prepare
from cstorch.errors import BackendError, words
from cstorch.tracing.program import Executable, Program

logger = logging.getLogger("cstorch.gpu")

SCHEME = "cuda://"


class CudaAppliance(Appliance):
    """Runs programs on one device.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._table = StateTable()
        self._replicas: dict[int, torch.UntypedStorage] = {}
        self._loaded = 0

    def load(self, program: Program, example: list[torch.Tensor], compile_dir: Path) -> Executable:
        """Compile `program` for the device, or load it from the cache."""
        executable = _compiled(program, example, self.device, compile_dir)
        self._loaded += 1
        return _OnDevice(self, self._loaded, program, example, executable)

    def close(self) -> None:
        """Free what the device holds."""
        self._replicas.clear()

    def push(self, number: int, state: list[torch.Tensor]) -> list[torch.Tensor] | None:
        """Bring the replica up to what the host has written; the program's state on the device when it has moved."""
        change = self._table.change(number, state)
        if change is None:
            return None
        for key in change.freed:
            self._replicas.pop(key, None)
        adopted = {key for key, _, _ in change.adopted}
        for memory in (*change.pushed, *(m for m in self._table.memories.values() if m.key in adopted)):
            replica = self._replicas.get(memory.key)
            if replica is None or replica.nbytes() != memory.storage.nbytes():
                made = torch.empty(memory.storage.nbytes(), dtype=torch.uint8, device=self.device)
                replica = self._replicas[memory.key] = made.untyped_storage()
            _bytes(replica).copy_(_bytes(memory.storage))
        return [
            torch.empty(0, dtype=dtype, device=self.device).set_(self._replicas[key], offset, shape, stride)
            for key, dtype, offset, shape, stride in change.state
        ]

    def fetch(self, number: int, written: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        """Bring what a program has written on the device into the host's tensors `written`."""
        memories = {m.key: m for t in written for m in [self._table.memories[t.untyped_storage().data_ptr()]]}
        for key, memory in memories.items():
            _bytes(memory.storage).copy_(_bytes(self._replicas[key]))
        self._table.ran(number, outputs)


class _OnDevice:
    """One program on the device."""

    def __init__(
        self, appliance: CudaAppliance, number: int, program: Program, example: list[torch.Tensor], run: Any
    ) -> None:
        self._appliance, self._number, self._run = appliance, number, run
        self._device = appliance.device
        self._state = len(program.state)
        self._written = written_state(program)
        self._draws = PortableProgram.of(program, example).draws
        self._inputs = [torch.empty_like(t, device=self._device) for t in example[self._state :]]
        self._bound: list[torch.Tensor] = []
        self._graph: Any = None
        self._outputs: list[torch.Tensor] = []
        self._in_place = 0  # runs since the state has moved
        self._captures = self._device.type == "cuda"
        self.made: Made = run.made
        self.runs = 0

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run it once."""
        self.runs += 1
        state = inputs[: self._state]
        moved = self._appliance.push(self._number, state)
        if moved is not None and [t.data_ptr() for t in moved] != [t.data_ptr() for t in self._bound]:
            self._graph, self._in_place = None, 0
        if moved is not None:
            self._bound = moved
        for mine, given in zip(self._inputs, inputs[self._state :], strict=True):
            mine.copy_(given)
        if self._draws and self._device.type == "cuda":  # on the cpu the host's generator is the program's
            with torch.cuda.device(self._device):
                torch.cuda.manual_seed(int(torch.randint(2**62, ())))
        self._step()
        outputs = [t.to("cpu", copy=True) for t in self._outputs]
        self._appliance.fetch(self._number, [state[i] for i in self._written], outputs)
        return outputs

    def _step(self) -> None:
        """On the device: as it is at first, which loads its kernels, and as a CUDA graph once its memory stays."""
        if self._captures and self._graph is None and self._in_place > 0:
            self._capture()
        if self._graph is None:
            self._outputs = self._run([*self._bound, *self._inputs])
        else:
            self._graph.replay()
        self._in_place += 1

    def _capture(self) -> None:
        """Record what a run does on the device, without doing it."""
        graph = torch.cuda.CUDAGraph()
        try:
            torch.cuda.synchronize(self._device)
            with torch.cuda.device(self._device), torch.cuda.graph(graph):
                self._outputs = self._run([*self._bound, *self._inputs])
        except RuntimeError as error:
            self._captures = False
            logger.warning("the program cannot be a CUDA graph (%s), so its kernels are launched one by one.", error)
            return
        self._graph = graph


def device_at(address: str) -> torch.device:
    """The device of an address "cuda://0"; "cuda://" is the first.

    Raises:
        BackendError: there is no such GPU.
    """
    from cstorch.backends.gpu_backend import device_of

    number = address.removeprefix(SCHEME).strip("/")
    if number and not number.isdigit():
        raise BackendError(
            f'cluster_config.mgmt_address is {address!r}, expected the number of a GPU, as in "cuda://0".'
        )
    return device_of(int(number or 0))


def on_device(graph: fx.GraphModule, device: torch.device) -> fx.GraphModule:
    """`graph`, which was traced for the cpu, for another device; it is changed."""

    def there(value: Any) -> Any:
        return device if isinstance(value, torch.device) and value.type == "cpu" else value

    for within in graphs_of(graph):
        for node in within.graph.nodes:
            node.args = pytree.tree_map(there, node.args)
            node.kwargs = pytree.tree_map(there, node.kwargs)
            if node.op == "get_attr":
                setattr(within, node.target, getattr(within, node.target).to(device))
        within.recompile()
    return graph


def _compiled(program: Program, example: list[torch.Tensor], device: torch.device, folder: Path) -> Any:
    """What runs `program` on the device: a library, or kernel by kernel where it cannot be compiled."""
    graph = on_device(prepare(program.graph), device)
    if interpreting() or device.type != "cuda":
        return InterpretedExecutable(graph, "CSTORCH_INTERPRET is set" if interpreting() else f"it runs on {device}")
    from cstorch.compiler.gpu_library import GpuLibrary

    capability = torch.cuda.get_device_capability(device)
    keyed = dataclasses.replace(program, passes=(*program.passes, f"cuda {capability} {torch.version.cuda}"))
    try:
        inputs = [t.to(device) for t in example]
        return GpuLibrary(graph, inputs, place_of(keyed, example, folder), device, program.name)
    except Exception as error:
        logger.debug("compile failed", exc_info=True)
        warn_of_failure(program.name, words(error))
        return InterpretedExecutable(graph, words(error))


def _bytes(memory: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=memory.device).set_(memory)
