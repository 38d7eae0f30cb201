"""Replaces a file whole or not at all.

The new file is written beside the target under a name of its own, flushed to disk, and renamed over the target; then
the folder is flushed. Whatever happens before the rename leaves the target as it was. A temporary file is locked
while it is written, so a later save tells those that a killed process left behind and removes them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from cstorch.errors import CheckpointError

_FRESH = 60.0  # seconds in which a living process may be about to lock the file it has just made


def replace(target: str | os.PathLike[str], write: Callable[[int], None]) -> None:
    """Replace `target` by what `write` writes.

    Args:
        target: The file, which need not exist. What a symbolic link points at is replaced, not the link.
        write: Called with the descriptor of an empty file.

    Raises:
        CheckpointError: the file cannot be written. What was there before is still there.
    """
    path = Path(os.path.realpath(target))
    mode = None
    with contextlib.suppress(OSError):
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointError(f"{target} is not a file, so no checkpoint can be written there. Name a file.")
        mode = stat.S_IMODE(found.st_mode)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    if len(os.fsencode(temporary.name)) > 255:
        temporary = path.with_name(f".{uuid.uuid4().hex[:8]}.{os.getpid()}.tmp")
    try:
        remove_strays(path)
        file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if mode is not None:
                os.fchmod(file, mode)
            write(file)
            os.fsync(file)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        finally:
            os.close(file)
        _flush_folder(path.parent)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {target} cannot be written: {error.strerror or error}. Name a file in a folder that "
            "exists, can be written and has room."
        ) from error


def remove_strays(path: Path) -> None:
    """Remove what saves to `path` left behind when their processes were killed."""
    for stray in path.parent.glob(f".{_escaped(path.name)}.*.tmp"):
        if stray.name.count(".") < path.name.count(".") + 4:
            continue
        with contextlib.suppress(OSError, ValueError):
            file = os.open(stray, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                owner = int(stray.name.split(".")[-3])
                if not (_is_alive(owner) and time.time() - os.fstat(file).st_mtime < _FRESH):
                    os.unlink(stray)
            finally:
                os.close(file)


def _escaped(name: str) -> str:
    """`name` as a pattern that matches itself alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def _flush_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems cannot
            os.fsync(file)
    finally:
        os.close(file)
