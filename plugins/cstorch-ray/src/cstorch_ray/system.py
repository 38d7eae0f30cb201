"""One system: a Ray actor that compiles programs and runs them on the tensors that it is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from cstorch.appliance import PortableProgram


@dataclass
class Ran:
    """What a run left.

    Attributes:
        outputs: The outputs of the program.
        state: The state tensors after the run.
        generator: The state of the random number generator after the run; None for a program that draws nothing.
    """

    outputs: list[torch.Tensor]
    state: list[torch.Tensor]
    generator: torch.Tensor | None


class System:
    """Runs programs. Made into an actor by the appliance.

    Args:
        threads: Threads that PyTorch uses.
    """

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self._programs: dict[int, tuple[PortableProgram, Any]] = {}

    def load(self, number: int, program: PortableProgram, compile_dir: str) -> None:
        """Compile a program, to be run under a number."""
        torch.use_deterministic_algorithms(program.deterministic)
        self._programs[number] = program, program.load(compile_dir)

    def run(self, number: int, inputs: list[torch.Tensor], generator: torch.Tensor | None) -> Ran | None:
        """Run a program; None where it is not loaded, since the actor was started anew."""
        if number not in self._programs:
            return None
        program, executable = self._programs[number]
        torch.use_deterministic_algorithms(program.deterministic)
        if generator is not None:
            torch.set_rng_state(generator)
        outputs = executable(inputs)
        return Ran(outputs, inputs[: program.state], None if generator is None else torch.get_rng_state())
