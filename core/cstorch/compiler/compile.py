"""A Program becomes an Executable: from the cache, by AOTInductor, or as an interpreted graph."""

from __future__ import annotations

import dataclasses
import logging
import os
import resource
import shutil
import time
import warnings
from pathlib import Path

import torch

from cstorch.backends import csx
from cstorch.compiler import cache
from cstorch.compiler.interpreter import InterpretedExecutable
from cstorch.compiler.lock import locked
from cstorch.compiler.made import Made
from cstorch.compiler.native import NativeExecutable, compile_native, has_compiler
from cstorch.compiler.passes import prepare
from cstorch.compiler.progress import CompileProgress
from cstorch.errors import words
from cstorch.tracing.program import Executable, Program
from cstorch.trust import is_trusted

logger = logging.getLogger("cstorch.compile")


class CachedExecutable(NativeExecutable):
    """A library in the cache.

    Args:
        path: The library.
        made: How it was made, for reports.
    """

    def __init__(self, path: Path, made: Made) -> None:
        super().__init__(path)
        self.made = made


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
    reason = why_interpreted()
    if reason:
        return InterpretedExecutable(prepared.graph, reason)
    path = place_of(prepared, example, folder)
    try:
        return build(prepared, example, path)
    except Exception as error:
        reason = words(error)
        warn_of_failure(program.name, reason)
        logger.debug("compile failed", exc_info=True)
        return InterpretedExecutable(prepared.graph, reason)


def place_of(program: Program, example: list[torch.Tensor], folder: Path) -> Path:
    """Where the library of a program, whose graph has been through the passes, is or will be.

    Args:
        program: The program.
        example: Inputs of the right shapes, strides and dtypes.
        folder: The compile cache.
    """
    return cache.library_path(cache.trusted_folder(folder), cache.program_key(program, example))


def why_interpreted() -> str:
    """Why no program can be compiled, in words, after a warning where nobody chose that; empty when all is there."""
    if interpreting():
        return "CSTORCH_INTERPRET is set"
    if has_compiler():
        return ""
    warnings.warn(
        "no C++ compiler was found, so programs are interpreted: right, but slower. Install g++ "
        "(or name a compiler in CXX) to compile them.",
        stacklevel=3,
    )
    return "no C++ compiler was found"


def warn_of_failure(name: str, reason: str) -> None:
    """Warn that a program could not be compiled."""
    warnings.warn(
        f"the program of {name!r} could not be compiled ({reason}), so it is interpreted: right, but slower.",
        stacklevel=3,
    )


def build(program: Program, example: list[torch.Tensor], path: Path) -> CachedExecutable:
    """The library of a program, loaded from `path`, or compiled there by this process or another at the same time.

    Args:
        program: The program; its graph has been through the passes.
        example: Inputs of the right shapes, strides and dtypes; they are not changed.
        path: Where the library is, or will be.

    Raises:
        Exception: whatever keeps it from being compiled.
    """
    operations = sum(node.op == "call_function" for node in program.graph.graph.nodes)
    what = f"{program.name}: {operations} operations"
    with locked(path.parent, what):
        known = _load(path, what)
        if known is not None:
            return known
        for left in path.parent.glob(".compiling-*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        with CompileProgress(what) as progress:
            path.parent.mkdir(mode=0o755, exist_ok=True)
            compile_native(program, example, path)
            path.chmod(0o755)  # whatever the umask is: what others can write is not loaded
        cache.describe(path, step=program.name, operations=operations, seconds=round(progress.seconds, 1))
        made = Made("compiled", progress.seconds, str(path), peak_bytes=_peak_bytes())
        executable = CachedExecutable(path, made)
    cache.make_room(path.parent.parent, path, csx.cache.limit_gi * 2**30)
    return executable


def _load(path: Path, what: str) -> CachedExecutable | None:
    """The library at `path`; None where there is none, or none that can be loaded."""
    start = time.perf_counter()
    try:
        if is_trusted(path):
            executable = CachedExecutable(path, Made("loaded from the cache", path=str(path)))
            executable.made = dataclasses.replace(executable.made, seconds=time.perf_counter() - start)
            cache.note_use(path)
            logger.info("loaded %s from %s", what, path.parent)
            return executable
    except FileNotFoundError:
        return None
    except RuntimeError as error:
        if path.exists():
            warnings.warn(
                f"the compiled program {path} cannot be loaded ({words(error)}), so it is compiled afresh.",
                stacklevel=2,
            )
        return None
    warnings.warn(
        f"the compiled program {path} could have been written by another user, so it is not loaded but "
        "compiled afresh. Keep compile_dir in a folder that only you can write.",
        stacklevel=2,
    )
    return None


def _peak_bytes() -> int:
    """The most memory that this process, or one that it has waited for, has taken."""
    used = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return 1024 * max(used)
