"""A program in a form that travels to another process: its graph and layouts, without what it is bound to here."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import fx

from cstorch.appliance.wire import Layout, dumped, loaded
from cstorch.compiler.cache import cache_folder
from cstorch.compiler.compile import compile_program
from cstorch.tracing.program import Executable, Program


@dataclass(frozen=True)
class PortableProgram:
    """What another process needs of a program to compile and run it; can be pickled.

    The process that receives it calls `load`. It must have the same version of cstorch and torch.

    Attributes:
        graph: The graph of the step.
        name: The name of the step function.
        passes: What tells the graph passes of plugins that `graph` has been through from others.
        layouts: Shape, strides and dtype of each input.
        state: So many of the first inputs are state, changed in place.
        draws: Whether the program draws random numbers.
        deterministic: Whether `torch.use_deterministic_algorithms` was on, which decides how it draws.
    """

    graph: fx.GraphModule
    name: str
    passes: tuple[str, ...]
    layouts: tuple[Layout, ...]
    state: int
    draws: bool
    deterministic: bool

    @classmethod
    def of(cls, program: Program, example: list[torch.Tensor]) -> PortableProgram:
        """The portable form of `program`, as an appliance's `load` gets it.

        Args:
            program: A traced step.
            example: Inputs with the shapes, strides and dtypes of the real ones.
        """
        random = torch.Tag.nondeterministic_seeded
        draws = any(random in getattr(node.target, "tags", ()) for node in program.graph.graph.nodes)
        layouts = tuple(map(Layout.of, example))
        deterministic = torch.are_deterministic_algorithms_enabled()
        return cls(program.graph, program.name, program.passes, layouts, len(program.state), draws, deterministic)

    def __reduce__(self) -> Any:
        graph, *others = (getattr(self, part.name) for part in fields(self))
        return _received, (dumped(graph), *others)

    def empty_inputs(self) -> list[torch.Tensor]:
        """Inputs of the right layouts, all zeros."""
        return [layout.empty().zero_() for layout in self.layouts]

    def load(self, compile_dir: str | os.PathLike[str] | None = None) -> Executable:
        """Compile the program, or load it from the cache, in this process.

        Args:
            compile_dir: The folder of the compile cache, made where it is missing; None for the default one.

        Returns:
            What runs it: called with the list of inputs, it changes the state among them in place.
        """
        # Of a Program, compiling reads what both have: graph, name and passes.
        return compile_program(self, self.empty_inputs(), cache_folder(compile_dir))  # type: ignore[arg-type]


def _received(dump: Any, name: str, passes: tuple[str, ...], layouts: tuple[Layout, ...], *others: Any) -> Any:
    return PortableProgram(loaded(dump, layouts), name, passes, layouts, *others)
