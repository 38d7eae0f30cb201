"""The embedded appliance: programs are compiled and run in this process, on the host's memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import torch

from cstorch.compiler.cache import cache_folder
from cstorch.compiler.compile import compile_program
from cstorch.tracing.program import Executable, Program


class Appliance(Protocol):
    """What runs programs."""

    def load(self, program: Program, example: list[torch.Tensor]) -> Executable:
        """Compile `program` and make it ready; `example` has the shapes of its inputs."""
        ...


class LocalAppliance:
    """Runs programs in this process.

    Args:
        compile_dir: Folder of the compile cache, or None for the default.
    """

    def __init__(self, compile_dir: str | os.PathLike[str] | None = None) -> None:
        self._requested = compile_dir
        self._folder: Path | None = None

    @property
    def compile_dir(self) -> Path:
        """The folder of the compile cache, made when first asked for."""
        if self._folder is None:
            self._folder = cache_folder(self._requested)
        return self._folder

    def load(self, program: Program, example: list[torch.Tensor]) -> Executable:
        """Compile `program`, or load it from the cache."""
        return compile_program(program, example, self.compile_dir)
