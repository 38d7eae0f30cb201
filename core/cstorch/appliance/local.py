"""The embedded appliance: programs are compiled and run in this process, on the host's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch

from cstorch.appliance.base import Appliance
from cstorch.backends import csx
from cstorch.compiler.compile import compile_program
from cstorch.tracing.program import Executable, Program


class LocalAppliance(Appliance):
    """Runs programs in this process: state is neither pushed nor fetched.

    Args:
        executes: Whether programs will run, not only be compiled.
    """

    def __init__(self, executes: bool = True) -> None:
        self._executes = executes
        self._tiered: WeakSet[Any] = WeakSet()

    def load(self, program: Program, example: list[torch.Tensor], compile_dir: Path) -> Executable:
        """Compile `program`, or load it from the cache."""
        if not (csx.performance.start_interpreted and self._executes):
            return compile_program(program, example, compile_dir)
        from cstorch.appliance.tiered import start_interpreted  # pickles and processes, which few runs need

        executable = start_interpreted(program, example, compile_dir)
        if hasattr(executable, "end"):
            self._tiered.add(executable)
        return executable

    def close(self) -> None:
        """End what is still being compiled."""
        for executable in self._tiered:
            executable.end()
