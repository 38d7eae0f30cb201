"""The embedded appliance: programs are compiled and run in this process, on the host's memory."""

from __future__ import annotations

from pathlib import Path

import torch

from cstorch.appliance.base import Appliance
from cstorch.compiler.compile import compile_program
from cstorch.tracing.program import Executable, Program


class LocalAppliance(Appliance):
    """Runs programs in this process: state is neither pushed nor fetched."""

    def load(self, program: Program, example: list[torch.Tensor], compile_dir: Path) -> Executable:
        """Compile `program`, or load it from the cache."""
        return compile_program(program, example, compile_dir)
