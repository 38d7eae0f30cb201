"""A program as an XLA executable: the host's tensors go in, and what the step changed comes back into them."""

from __future__ import annotations

import logging
from typing import Any

import jax
import torch
from cstorch.errors import BackendError
from cstorch.tracing.program import Program

from cstorch_jax.arrays import dtype_of, overwrite, to_numpy, to_torch
from cstorch_jax.functional import functional
from cstorch_jax.lowering import JaxInterpreter

logger = logging.getLogger("cstorch.compile")

# A host callback that looks at a large array waits forever where the program that calls it runs in the same thread.
jax.config.update("jax_cpu_enable_async_dispatch", False)

OPTIONS = {"xla_allow_excess_precision": False}  # bfloat16 is rounded after each operation, as eager PyTorch does


class XlaExecutable:
    """Runs one program.

    Args:
        program: A traced step.
        example: Inputs with the shapes, strides and dtypes of the real ones. They are not changed.

    Attributes:
        on_host: Names of the operators that PyTorch runs, without those that draw random numbers.

    Raises:
        BackendError: the step holds what JAX has no form for.
    """

    def __init__(self, program: Program, example: list[torch.Tensor]) -> None:
        self._name = program.name
        self._state = len(program.state)
        self._functional = functional(program.graph, example)
        self._checked = False
        interpreter = JaxInterpreter(self._functional.graph)
        with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
            shapes = [jax.ShapeDtypeStruct(tuple(t.shape), dtype_of(t.dtype)) for t in example]
            lowered = jax.jit(interpreter.run, compiler_options=OPTIONS).lower(*shapes)
            self._run = lowered.compile()
        self.on_host = sorted(interpreter.on_host)
        if self.on_host:
            logger.info("%s: run in PyTorch, called by XLA: %s", program.name, ", ".join(self.on_host))

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run once."""
        if not self._checked:
            self._refuse_shared_memory(inputs)
        with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
            found: Any = jax.block_until_ready(self._run(*map(to_numpy, inputs)))
        outputs = [to_torch(value) for value in found[: self._functional.outputs]]
        for place, value in zip(self._functional.changed, found[self._functional.outputs :], strict=True):
            overwrite(inputs[place], value)
        return outputs

    def _refuse_shared_memory(self, inputs: list[torch.Tensor]) -> None:
        """Two state tensors in one memory would each get a copy of their own, and changes of one miss the other."""
        seen: set[int] = set()
        for tensor in inputs[: self._state]:
            address = tensor.untyped_storage().data_ptr()
            if address and address in seen:
                raise BackendError(
                    f"two state tensors of the step {self._name!r} share memory, one of them of shape "
                    f'{tuple(tensor.shape)}. The jax backend needs each in its own: clone it, or use the backend "CSX".'
                )
            seen.add(address)
        self._checked = True
