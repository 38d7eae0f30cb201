"""Where compiled libraries are kept: one folder per program in compile_dir, named by what the library depends on."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cstorch._torch_private.inductor import RUNTIME
from cstorch.compiler.native import GENERATION, options_now
from cstorch.tracing.program import Program

logger = logging.getLogger("cstorch.compile")

DEFAULT = Path("/opt/cerebras/cached_compile")


def cache_folder(requested: str | os.PathLike[str] | None) -> Path:
    """The folder to keep libraries in: the one asked for, the default, or the user's cache folder."""
    if requested is not None:
        folder = Path(requested)
        folder.mkdir(parents=True, exist_ok=True)
        return folder.resolve()
    try:
        DEFAULT.mkdir(parents=True, exist_ok=True)
        if os.access(DEFAULT, os.W_OK):
            return DEFAULT
    except OSError:
        pass
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "cstorch" / "cached_compile"
    folder.mkdir(parents=True, exist_ok=True)
    logger.info("%s cannot be written; compiled programs are kept in %s", DEFAULT, folder)
    return folder


def program_key(program: Program, example: list[torch.Tensor]) -> str:
    """A hash of all that the library of `program` depends on."""
    parts: list[Any] = [
        torch.__version__,
        GENERATION,
        RUNTIME.read_text(),
        platform.machine(),
        _processor(),
        torch.get_num_threads(),
        sorted(options_now().items()),
        program.graph.code,
        program.passes,
        [(tuple(t.shape), t.stride(), str(t.dtype)) for t in example],
    ]
    digest = hashlib.sha256(json.dumps(parts, default=str).encode())
    for node in program.graph.graph.nodes:
        if node.op == "get_attr":
            digest.update(getattr(program.graph, node.target).numpy().tobytes())
    return digest.hexdigest()[:32]


@functools.cache
def _processor() -> str:
    """The processor's instruction sets: code compiled for one may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return torch.backends.cpu.get_cpu_capability()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def library_path(folder: Path, key: str) -> Path:
    """Where the library of a program is, or will be."""
    return folder / key / "library.so"


@dataclass(frozen=True)
class Entry:
    """One compiled program in the cache.

    Attributes:
        folder: Its folder.
        size: The bytes of its files.
        time: When it was compiled, in seconds since 1970.
    """

    folder: Path
    size: int
    time: float

    @property
    def key(self) -> str:
        """What `program_key` said of the program."""
        return self.folder.name

    def remove(self) -> None:
        """Remove it, out of the way at once: another process may be looking for it."""
        aside = self.folder.with_name(f".{self.folder.name}.{os.getpid()}")
        self.folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def entries(folder: Path) -> list[Entry]:
    """The compiled programs in a folder, the oldest first."""
    found = []
    for library in folder.glob(f"[0-9a-f]*/{library_path(folder, '').name}"):
        try:
            files = [file.stat() for file in library.parent.iterdir()]
            found.append(Entry(library.parent, sum(file.st_size for file in files), library.stat().st_mtime))
        except FileNotFoundError:  # another process removes it
            continue
    return sorted(found, key=lambda entry: entry.time)
