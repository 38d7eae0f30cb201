"""A Program becomes an Executable: from the cache, by AOTInductor, or as an interpreted graph."""

from __future__ import annotations

import dataclasses
import logging
import os
import warnings
from pathlib import Path

import torch

from cstorch.compiler import cache
from cstorch.compiler.interpreter import InterpretedExecutable
from cstorch.compiler.native import NativeExecutable, compile_native, has_compiler
from cstorch.compiler.passes import prepare
from cstorch.compiler.progress import CompileProgress
from cstorch.tracing.program import Executable, Program
from cstorch.trust import is_trusted

logger = logging.getLogger("cstorch.compile")


def interpreting() -> bool:
    """Whether programs are interpreted by choice: the environment variable CSTORCH_INTERPRET is set."""
    return os.environ.get("CSTORCH_INTERPRET", "") not in ("", "0")


def compile_program(program: Program, example: list[torch.Tensor], folder: Path) -> Executable:
    """The executable of `program`.

    Args:
        program: A traced step.
        example: Inputs of the right shapes, strides and dtypes; they are not changed.
        folder: The compile cache.

    Returns:
        A native library when a C++ compiler is there and Inductor takes the program; otherwise, after a
        warning, the interpreted graph, which gives the same results more slowly.
    """
    prepared = dataclasses.replace(program, graph=prepare(program.graph))
    if interpreting():
        return InterpretedExecutable(prepared.graph)
    if not has_compiler():
        warnings.warn(
            "no C++ compiler was found, so programs are interpreted: right, but slower. Install g++ "
            "(or name a compiler in CXX) to compile them.",
            stacklevel=2,
        )
        return InterpretedExecutable(prepared.graph)
    path = cache.library_path(folder, cache.program_key(prepared, example))
    operations = sum(node.op == "call_function" for node in prepared.graph.graph.nodes)
    what = f"{program.name}: {operations} operations"
    if path.exists():
        if is_trusted(path):
            logger.info("loaded %s from %s", what, path.parent)
            return NativeExecutable(path)
        warnings.warn(
            f"the compiled program {path} could have been written by another user, so it is not loaded but "
            "compiled afresh. Keep compile_dir in a folder that only you can write.",
            stacklevel=2,
        )
    try:
        with CompileProgress(what):
            compile_native(prepared, example, path)
        return NativeExecutable(path)
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "no message")[:300]
        warnings.warn(
            f"the program of {program.name!r} could not be compiled ({type(error).__name__}: {reason}), so it is "
            "interpreted: right, but slower.",
            stacklevel=2,
        )
        logger.debug("compile failed", exc_info=True)
        return InterpretedExecutable(prepared.graph)
