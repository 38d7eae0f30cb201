"""Builds and installs the native device guard, so that an error inside backward is an exception and no abort."""

from __future__ import annotations

import ctypes
import logging
import subprocess
from pathlib import Path

from cstorch._torch_private.unwinding import let_errors_pass
from cstorch.native_source import built

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
        library = built(SOURCE, folder, ["c10"])
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
