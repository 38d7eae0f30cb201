"""Where compiled libraries are kept: one folder per program in compile_dir, named by what the library depends on."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import logging
import os
import platform
import shutil
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cstorch._torch_private.inductor import RUNTIME
from cstorch.compiler.lock import forget, locked
from cstorch.compiler.native import GENERATION, options_now
from cstorch.compiler.passes import graphs_of
from cstorch.tracing.program import Program
from cstorch.trust import is_private

logger = logging.getLogger("cstorch.compile")

DEFAULT = Path("/opt/cerebras/cached_compile")
_MANIFEST = "manifest.json"
_instead: dict[Path, Path] = {}  # private folders, by the one that others can write


def cache_folder(requested: str | os.PathLike[str] | None) -> Path:
    """The folder to keep libraries in: the one asked for, the default, or the user's cache folder."""
    if requested is not None:
        folder = Path(requested)
        _make(folder)
        return folder.resolve()
    try:
        _make(DEFAULT)
        if os.access(DEFAULT, os.W_OK):
            return DEFAULT
    except OSError:
        pass
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "cstorch" / "cached_compile"
    _make(folder)
    logger.info("%s cannot be written; compiled programs are kept in %s", DEFAULT, folder)
    return folder


def _make(folder: Path) -> None:
    """Make a folder that the user's group cannot write, whatever the umask is: libraries are loaded from it."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)


def trusted_folder(folder: Path) -> Path:
    """`folder`; where others can write it, a private one for the life of this process, after a warning."""
    if is_private(folder):
        return folder
    if folder in _instead:
        return _instead[folder]
    warnings.warn(
        f"the compile cache {folder} belongs to another user or can be written by others, so no library is loaded from "
        f"it and programs are compiled afresh for this process. Take the right away (chmod go-w {folder}), or "
        "name another compile_dir.",
        stacklevel=2,
    )
    _instead[folder] = private = Path(tempfile.mkdtemp(prefix="cstorch-compiled-"))
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    return private


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
        [graph.code for graph in graphs_of(program.graph)],
        program.passes,
        [(tuple(t.shape), t.stride(), str(t.dtype)) for t in example],
    ]
    digest = hashlib.sha256(json.dumps(parts, default=str).encode())
    for node in program.graph.graph.find_nodes(op="get_attr"):
        constant = getattr(program.graph, node.target)
        if isinstance(constant, torch.Tensor):  # not the graph of a loop
            digest.update(constant.numpy().tobytes())
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
        used: When it was last loaded or compiled, likewise.
        step: The step that it is of; empty where that is not known.
    """

    folder: Path
    size: int
    time: float
    used: float
    step: str = ""

    @property
    def key(self) -> str:
        """What `program_key` said of the program."""
        return self.folder.name

    def remove(self) -> None:
        """Remove it, out of the way at once: another process may be looking for it."""
        aside = self.folder.with_name(f".{self.folder.name}.{os.getpid()}")
        self.folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
        forget(self.folder)


def entries(folder: Path) -> list[Entry]:
    """The compiled programs in a folder, those first that were not used for longest."""
    found = []
    for library in folder.glob(f"[0-9a-f]*/{library_path(folder, '').name}"):
        try:
            size = sum(file.stat().st_size for file in library.parent.iterdir())
            info = library.stat()
            used = max(info.st_atime, info.st_mtime)
            found.append(Entry(library.parent, size, info.st_mtime, used, _described(library)))
        except FileNotFoundError:  # another process removes it
            continue
    return sorted(found, key=lambda entry: (entry.used, entry.key))


def describe(library: Path, **told: Any) -> None:
    """Keep beside a library what it is, for people; nothing depends on it."""
    with contextlib.suppress(OSError):
        library.with_name(_MANIFEST).write_text(json.dumps({"torch": torch.__version__, **told}) + "\n")


def _described(library: Path) -> str:
    try:
        return str(json.loads(library.with_name(_MANIFEST).read_text())["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def note_use(library: Path) -> None:
    """Note that a library is loaded: those that are not go first when room is made."""
    with contextlib.suppress(OSError):  # another user's, or on a disk that cannot be written
        os.utime(library, (time.time(), library.stat().st_mtime))


def make_room(folder: Path, keep: Path, limit: float) -> None:
    """Remove the programs that were not used for longest until the rest fits; none that is being compiled.

    Args:
        folder: The cache.
        keep: The library that stays in any case.
        limit: The most bytes that all may have.
    """
    known = entries(folder)
    size = sum(entry.size for entry in known)
    for entry in known:
        if size <= limit:
            return
        if entry.folder == keep.parent:
            continue
        with locked(entry.folder, wait=False) as free:
            if free:
                size -= entry.size
                with contextlib.suppress(OSError):
                    entry.remove()
                    logger.info("removed the compiled program %s to make room", entry.folder)
