"""Builds a source file of cstorch's own into a library that is kept in the compile cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from cstorch.trust import is_trusted


def built(source: Path, folder: Path, libraries: Sequence[str]) -> Path:
    """The library of `source`, built when it is not in `folder` yet.

    Args:
        source: A C++ file that includes PyTorch's headers.
        folder: The compile cache.
        libraries: PyTorch's libraries that it calls, such as "c10".

    Raises:
        OSError: there is no C++ compiler, or `folder` cannot be written.
        subprocess.SubprocessError: it cannot be compiled.
        PermissionError: another user could have written the library that is there.
    """
    root = Path(torch.__file__).parent
    flags = ["-std=c++20", "-O2", "-ftree-vectorize", "-shared", "-fPIC"]
    key = hashlib.sha256(f"{torch.__version__} {flags} {source.read_text()}".encode()).hexdigest()[:16]
    library = folder / f"{source.stem}-{key}" / f"{source.stem}.so"
    if library.exists():
        if not is_trusted(library):
            raise PermissionError(f"{library} could have been written by another user")
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as scratch:
        made = Path(scratch) / library.name
        compiler = os.environ.get("CXX", "g++")
        linked = [f"-L{root / 'lib'}", *(f"-l{name}" for name in libraries)]
        command = [compiler, str(source), *flags, f"-I{root / 'include'}", *linked, "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        made.replace(library)
    return library
