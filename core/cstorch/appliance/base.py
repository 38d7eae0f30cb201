"""The Appliance base class: what runs programs, in this process or on systems elsewhere."""

from __future__ import annotations

import abc
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from cstorch.tracing.program import Executable, Program


class Appliance(abc.ABC):
    """Runs the programs of a CSX backend. Subclass it and return it from `cstorch_connect_appliance`.

    **Load.** `load` is called once for each program, after all graph passes of plugins, and returns what runs it.

    **Run.** The executable is called at each step with the input tensors, in the order of the graph's placeholders:
    the state, then the step's arguments, then its numbers as 0-d tensors. It returns one cpu tensor for each output,
    fresh at each run or not written to again.

    **State.** The first `len(program.state)` inputs are the host's own tensors of weights, buffers, optimizer state
    and gradients, the same objects at every run as long as nobody exchanges them. The host reads and writes them
    between runs as it likes. So when the executable is called, what the host wrote must be *pushed* to where the
    program runs, and before it returns, what the program changed must be *fetched* into these very tensors. An
    appliance that runs on the host's memory has nothing to do for either.

    **Random numbers** follow `torch.manual_seed`: a program that draws starts from the state of the host's generator
    and leaves it advanced.

    **Errors.** A system that has died: raise a `cstorch.errors.BackendError` within seconds that names it; never hang.

    **Close.** `close` is called once, at the end of the backend. Executables are not called after it.

    Attributes:
        divides_batches: Whether, with `num_csx` above 1, programs are for one system's part of a batch and average
            gradients over the group of all systems. False: every program is for the whole batch.
    """

    divides_batches: bool = False

    @abc.abstractmethod
    def load(self, program: Program, example: list[torch.Tensor], compile_dir: Path) -> Executable:
        """Compile `program`, or load it from the cache, and make it ready to run.

        Args:
            program: A traced step; `program.graph` is the graph, `program.state` the state, `program.name` its name.
            example: Inputs with the shapes, strides and dtypes of the real ones; they must not be changed.
            compile_dir: The folder of the compile cache.

        Returns:
            What runs the program, `(list of inputs) -> list of outputs`.
        """

    def check(self) -> None:  # noqa: B027  most appliances have one replica of the state
        """Compare the replicas of the state; called at checkpoint steps. Raise a BackendError where they differ."""

    def close(self) -> None:  # noqa: B027  most appliances have nothing to end
        """End the systems and free what they hold."""
