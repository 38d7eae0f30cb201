"""A program in a form that travels to another process: its graph and layouts, without what it is bound to here."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import fx

from cstorch._torch_private.tracing import propagate
from cstorch.compiler.cache import cache_folder
from cstorch.compiler.compile import compile_program
from cstorch.compiler.passes import copy_graph
from cstorch.tracing.program import Executable, Program

Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


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
        graph = copy_graph(program.graph)
        draws = any(random in getattr(node.target, "tags", ()) for node in graph.graph.nodes)
        for node in graph.graph.nodes:
            node.meta = {}  # fake tensors and the places in the user's code stay here
        layouts = tuple((tuple(t.shape), t.stride(), t.dtype) for t in example)
        deterministic = torch.are_deterministic_algorithms_enabled()
        return cls(graph, program.name, program.passes, layouts, len(program.state), draws, deterministic)

    def load(self, compile_dir: str | os.PathLike[str] | None = None) -> Executable:
        """Compile the program, or load it from the cache, in this process.

        Args:
            compile_dir: The folder of the compile cache, made where it is missing; None for the default one.

        Returns:
            What runs it: called with the list of inputs, it changes the state among them in place.
        """
        example = [torch.empty_strided(*layout[:2], dtype=layout[2]).zero_() for layout in self.layouts]
        for node, tensor in zip(self.graph.graph.find_nodes(op="placeholder"), example, strict=True):
            node.meta["val"] = tensor
        propagate(self.graph)
        # Of a Program, compiling reads what both have: graph, name and passes.
        return compile_program(self, example, cache_folder(compile_dir))  # type: ignore[arg-type]
