"""Builds and installs the native device guard, so that an error inside backward is an exception and no abort."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import subprocess
import tempfile
from pathlib import Path

import torch

from cstorch._torch_private.unwinding import let_errors_pass
from cstorch.trust import is_trusted

logger = logging.getLogger("cstorch.device")

SOURCE = Path(__file__).parent.parent / "_torch_private" / "guard.cpp"
_installed = False


def install(folder: Path) -> bool:
    """Install the guard, building it into `folder` when it is not there; True when it is installed.

    Without a C++ compiler PyTorch's own guard stays, with the change that `_torch_private.unwinding` makes.

    Args:
        folder: The compile cache. The library is about 25 KB and is built in one to two seconds.
    """
    global _installed
    if _installed:
        return True
    try:
        library = _build(folder)
        ctypes.CDLL(str(library)).cstorch_install_guard()
    except (OSError, subprocess.SubprocessError, PermissionError) as error:
        if not let_errors_pass():
            logger.warning(
                "the native device guard is not there (%s), so an error inside backward ends the process. "
                "Install a C++ compiler (g++), or name one in CXX.",
                error,
            )
        return False
    _installed = True
    return True


def _build(folder: Path) -> Path:
    key = hashlib.sha256(f"{torch.__version__} {SOURCE.read_text()}".encode()).hexdigest()[:16]
    library = folder / f"guard-{key}" / "guard.so"
    if library.exists():
        if not is_trusted(library):
            raise PermissionError(f"{library} could have been written by another user")
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    root = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as scratch:
        made = Path(scratch) / "guard.so"
        compiler = os.environ.get("CXX", "g++")
        flags = ["-std=c++20", "-O1", "-shared", "-fPIC", f"-I{root / 'include'}", f"-L{root / 'lib'}", "-lc10"]
        command = [compiler, str(SOURCE), *flags, "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        made.replace(library)
    return library
