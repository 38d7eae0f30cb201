"""What the controller knows of the systems' replica of the state: which memory they have, and when it was changed."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import torch

from cstorch.device.tensor import observer
from cstorch.tracing.batch_dims import key, written_memory
from cstorch.tracing.program import Program


@dataclass
class Memory:
    """Memory that state tensors are in.

    Attributes:
        key: Its number on the systems.
        storage: The memory itself; held, so that its address is not given to another.
        tensors: The bound tensors in it.
        is_known: Whether the systems have the contents that it had when the host wrote to it last.
        writes: So often the host had written to it through csx tensors when that was looked at last.
    """

    key: int
    storage: torch.UntypedStorage
    tensors: list[Bound] = field(default_factory=list)
    is_known: bool = False
    writes: int = 0

    @property
    def is_written(self) -> bool:
        """Whether the host has written to it since the systems had the same contents."""
        return any(_version(bound.tensor) != bound.version for bound in self.tensors)


@dataclass
class Bound:
    """A state tensor of programs.

    Attributes:
        tensor: The host's tensor.
        memory: The memory that it is in.
        version: PyTorch's count of the writes to it when the systems last had the same contents.
        programs: So many programs use it.
    """

    tensor: torch.Tensor
    memory: Memory
    version: float
    programs: int = 0


@dataclass
class Change:
    """What the systems must be told before a program runs.

    Attributes:
        freed: Numbers of memory that is no longer used.
        adopted: Memory that is an output of an earlier run: number, program, output.
        pushed: Memory whose contents must be sent.
        state: The state tensors, when they are others than before: number, dtype, offset, shape, stride.
    """

    freed: list[int] = field(default_factory=list)
    adopted: list[tuple[int, int, int]] = field(default_factory=list)
    pushed: list[Memory] = field(default_factory=list)
    state: list[tuple[Any, ...]] = field(default_factory=list)


class StateTable:
    """The memory of the state of all programs."""

    def __init__(self) -> None:
        self.memories: dict[int, Memory] = {}
        self._tensors: dict[int, Bound] = {}
        self._bound: dict[int, list[Bound]] = {}
        # as programs left their state, that which has run last at the end: `_settle` writes it down
        self._settled: dict[int, tuple[list[torch.Tensor], list[float]]] = {}
        self._outputs: dict[int, list[tuple[torch.Tensor, float, int]]] = {}  # of the last run of each program
        self._next = 0
        self._all_writes = -1
        if observer.writes is None:
            observer.writes = {}

    def _look(self) -> None:
        """Notice what the host has written to since."""
        if self._all_writes == observer.all_writes:
            return
        self._all_writes = observer.all_writes
        for where, memory in self.memories.items():
            count = _writes(where)
            if count != memory.writes:
                memory.writes, memory.is_known = count, False
                self._settle()

    def _settle(self) -> None:
        """Write down the versions that programs have left: not at each run, since few ask for them."""
        for program, (_, versions) in self._settled.items():
            for entry, version in zip(self._bound[program], versions, strict=True):
                entry.version = version
        self._settled.clear()

    def change(self, program: int, state: list[torch.Tensor]) -> Change | None:
        """What has to be told before `program` runs on `state`; None for nothing, as usual."""
        self._look()
        tensors, versions = self._settled.get(program, ((), ()))
        if tensors and all(map(operator.is_, tensors, state)) and _versions(state) == versions:
            return None
        self._settle()
        bound = self._bound.get(program)
        if bound is not None:
            for entry, tensor in zip(bound, state, strict=True):
                if entry.tensor is not tensor or not entry.memory.is_known or _version(tensor) != entry.version:
                    break
            else:
                return None
        return self._changed(program, state)

    def _changed(self, program: int, state: list[torch.Tensor]) -> Change:
        found = Change()
        after = [self._bind(tensor, found) for tensor in state]
        for entry in self._bound.get(program, ()):
            self._release(entry, found)
        self._bound[program] = after
        for memory in {entry.memory.key: entry.memory for entry in after}.values():
            if not memory.is_known or memory.is_written:
                found.pushed.append(memory)
                memory.is_known = True
        found.state = [
            (e.memory.key, e.tensor.dtype, e.tensor.storage_offset(), tuple(e.tensor.shape), e.tensor.stride())
            for e in after
        ]
        return found

    def _bind(self, tensor: torch.Tensor, found: Change) -> Bound:
        entry = self._tensors.get(id(tensor))
        if entry is None:
            memory = self._memory(tensor.untyped_storage(), found)
            entry = self._tensors[id(tensor)] = Bound(tensor, memory, _version(tensor))
            memory.tensors.append(entry)
        entry.programs += 1
        return entry

    def _release(self, entry: Bound, found: Change) -> None:
        entry.programs -= 1
        if entry.programs:
            return
        memory = entry.memory
        del self._tensors[id(entry.tensor)]
        memory.tensors = [known for known in memory.tensors if known is not entry]
        if not memory.tensors:
            del self.memories[memory.storage.data_ptr()]
            found.freed.append(memory.key)

    def _memory(self, storage: torch.UntypedStorage, found: Change) -> Memory:
        where = storage.data_ptr()
        memory = self.memories.get(where)
        if memory is None:
            self._next += 1
            memory = self.memories[where] = Memory(self._next, storage, writes=_writes(where))
            for program, outputs in self._outputs.items():
                for index, (output, *seen) in enumerate(outputs):
                    if output.untyped_storage().data_ptr() == where and seen == [_version(output), memory.writes]:
                        found.adopted.append((memory.key, program, index))
                        memory.is_known = True
                        return memory
        return memory

    def ran(self, program: int, outputs: list[torch.Tensor]) -> None:
        """Note that `program` has run on all systems: what it wrote is the same everywhere."""
        known = self._settled.pop(program, None)
        tensors = [entry.tensor for entry in self._bound[program]] if known is None else known[0]
        self._settled[program] = tensors, _versions(tensors)
        self._outputs[program] = [(t, _version(t), _writes(t.untyped_storage().data_ptr())) for t in outputs]

    def unwritten(self) -> list[Memory]:
        """Memory that systems have and the host has not written to since."""
        self._look()
        self._settle()
        return [m for m in self.memories.values() if m.is_known and not m.is_written]

    def forget(self) -> None:
        """The systems are new and know nothing."""
        self._outputs.clear()
        self._settle()
        for memory in self.memories.values():
            memory.is_known = False


def _writes(where: int) -> int:
    return 0 if observer.writes is None else observer.writes.get(where, 0)


def _version(tensor: torch.Tensor) -> float:
    """How often PyTorch has written to `tensor`; one that does not count is written whenever it is asked."""
    return float("nan") if tensor.is_inference() else tensor._version  # another nan each time: lists of them differ


def _versions(tensors: list[torch.Tensor]) -> list[float]:
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:  # one of them does not count
        return [_version(tensor) for tensor in tensors]


def written_state(program: Program) -> list[int]:
    """Positions of the state that a program writes to."""
    graph = program.graph.graph
    touched = written_memory(graph)
    state = list(graph.find_nodes(op="placeholder"))[: len(program.state)]
    return [i for i, node in enumerate(state) if key(node) in touched]
