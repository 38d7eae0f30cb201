"""Compiles a program into one shared library with AOTInductor and loads it into this process."""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import fx

from cstorch._torch_private.collectives import wait
from cstorch._torch_private.inductor import (
    Epilogue,
    aot_compile,
    check_descriptions,
    cpp_compiler,
    load_library,
    lower_as_buffer,
    lower_as_copy,
)
from cstorch.compiler.bias import unfuse_bias
from cstorch.compiler.channels_last import keep_channels_last
from cstorch.compiler.own_memory import own_outputs
from cstorch.compiler.passes import copy_graph, graphs_of
from cstorch.compiler.precision import STRICT
from cstorch.compiler.realize import realize_scalars
from cstorch.compiler.updates import epilogue, split_updates
from cstorch.tracing.program import Program

logger = logging.getLogger("cstorch.compile")

GENERATION = 10
"""Counts what `compile_native` makes of a program: raised when a pass is added, so that no older library is loaded."""

OPTIONS: dict[str, Any] = {
    # The instruction set is read from the processor; compiling a test program for it costs five seconds.
    "cpp.vec_isa_ok": True,
    # What surrounds the kernels is glue: optimizing it costs seconds and gains microseconds.
    "aot_inductor.compile_wrapper_opt_level": "O1",
    "aot_inductor.enable_line_tables": False,
    # A bfloat16 value is rounded after each operation, as eager PyTorch does, rather than at the end of a kernel.
    "emulate_precision_casts": True,
}


LONG = 16 << 20
"""A run that makes more bytes than these takes a millisecond or more, in which other threads should go on."""


class NativeExecutable:
    """An executable that calls a compiled library.

    Args:
        path: The library, as made by `compile_native`.

    Attributes:
        runs: How often it has run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._run = load_library(str(path))
        self.runs = 0

    def __call__(self, inputs: list[Any]) -> list[torch.Tensor]:
        """Run the library once."""
        self.runs += 1
        return self._run(inputs)


def options_now() -> dict[str, Any]:
    """Compile options under the present settings of the process."""
    return {**OPTIONS, "fallback_random": torch.are_deterministic_algorithms_enabled()}


def has_compiler() -> bool:
    """Whether a C++ compiler is there to compile with."""
    try:
        return shutil.which(cpp_compiler()) is not None
    except Exception:
        return False


def compile_native(program: Program, example: list[torch.Tensor], target: Path) -> None:
    """Compile `program` and put the library at `target`, whole or not at all.

    Args:
        program: The program; its graph has been through the passes.
        example: Inputs with the shapes, strides and dtypes of the real ones. They are not changed.
        target: Where the library goes.
    """
    lower_as_buffer(torch.ops.cstorch.realize.default)
    lower_as_copy(torch.ops.cstorch.own.default)
    target.parent.mkdir(parents=True, exist_ok=True)
    graph = copy_graph(program.graph)
    strict = STRICT in program.passes
    outputs = len(next(iter(graph.graph.find_nodes(op="output"))).args[0])
    kernels = split_updates(graph)
    try:
        _compile(graph, example, target, epilogue(kernels, outputs) if kernels else None, strict)
    except Exception:
        if not kernels:
            raise
        logger.info("compiling again, with each parameter's update by itself", exc_info=True)
        _compile(copy_graph(program.graph), example, target, None, strict)


def _compile(
    graph: fx.GraphModule, example: list[torch.Tensor], target: Path, epilogue: Epilogue | None, strict: bool
) -> None:
    for within in graphs_of(graph):
        realize_scalars(within)
        if not strict:
            unfuse_bias(within)
    own_outputs(graph)
    with tempfile.TemporaryDirectory(prefix=".compiling-", dir=target.parent) as folder:
        # A function is not part of the cache's key, where its address would be: GENERATION counts for it.
        chosen = {**options_now(), "pattern_matcher": not strict, "joint_custom_pre_pass": keep_channels_last}
        options = {**chosen, "aot_inductor.output_path": str(Path(folder) / "library.so")}
        shares_gil = _takes_long(graph)
        made = Path(aot_compile(graph, example, options, epilogue, shares_gil))
        check_descriptions(Path(folder))
        for description in Path(folder).glob("*.wrapper.json"):  # how to call operators that have no C entry point
            description.replace(target.with_suffix(".json"))
        made.replace(target)


def _takes_long(graph: fx.GraphModule) -> bool:
    """Whether Python's lock is released while the graph runs: it waits for other processes, or works for long.

    A thread of gloo needs the lock now and then, so that a program which kept it and waited would wait for ever. A
    short program keeps it: who releases the lock gets it back after five milliseconds where another thread is busy.
    """
    nodes = [node for within in graphs_of(graph) for node in within.graph.nodes if node.op == "call_function"]
    values = (node.meta.get("val") for node in nodes)
    made = sum(value.numel() * value.itemsize for value in values if isinstance(value, torch.Tensor))
    return made > LONG or any(node.target is wait for node in nodes)
