"""What is needed to repeat the last steps: a copy of the state, and what each run since then was called with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from cstorch.appliance.state import Memory

_STEPS = 100  # repeated at most; a copy of the state each time so many have passed costs little
_BYTES = 64 << 20  # of batches that are kept, beyond the size of the state


@dataclass(frozen=True)
class Run:
    """One run of a program.

    Attributes:
        program: The number of the program.
        state: Its state tensors.
        arguments: Copies of its other inputs.
        generator: The state of the host's random numbers before it, when it draws some.
    """

    program: int
    state: list[torch.Tensor]
    arguments: list[torch.Tensor]
    generator: torch.Tensor | None


class RunLog:
    """The runs since the last copy of the state."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._copies: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []
        self._size = self._kept = 0

    def add(self, run: Run, memories: Iterable[Memory], state_changed: bool) -> None:
        """Note a run that is about to begin.

        Args:
            run: The run.
            memories: The memory of the state of all programs.
            state_changed: Whether the host has changed the state since the run before.
        """
        if state_changed or not self.runs or len(self.runs) >= _STEPS or self._kept > self._size + _BYTES:
            self._copies = [(m.storage, m.storage.clone()) for m in memories]
            self._size = sum(storage.nbytes() for storage, _ in self._copies)
            self.runs, self._kept = [], 0
        self.runs.append(run)
        self._kept += sum(t.nbytes for t in run.arguments)

    def restore(self) -> None:
        """Make the state what it was before the first of the runs."""
        for storage, copy in self._copies:
            storage.copy_(copy, non_blocking=False)


def copies(tensors: list[Any]) -> list[torch.Tensor]:
    """Copies of the arguments of a run."""
    return [t.clone() for t in tensors]
