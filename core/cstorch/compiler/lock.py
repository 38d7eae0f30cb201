"""A lock for each entry of the compile cache, so that of several processes one compiles and the others wait."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger("cstorch.compile")

FOLDER = ".locks"


@contextlib.contextmanager
def locked(entry: Path, what: str = "", wait: bool = True) -> Iterator[bool]:
    """Hold the lock of a folder in the cache. The system frees it when the process ends, however it does.

    Args:
        entry: The folder, which need not exist.
        what: What is waited for, for the log.
        wait: Wait for another holder; otherwise go on without the lock.

    Yields:
        Whether nobody else holds it. True also where the file system cannot lock or the lock is another user's.
    """
    try:
        descriptor = _acquire(entry.parent / FOLDER / entry.name, what, wait)
    except BlockingIOError:
        yield False
        return
    except OSError as error:
        logger.debug("%s is used without a lock: %s", entry, error)
        yield True
        return
    try:
        yield True
    finally:
        os.close(descriptor)


def forget(entry: Path) -> None:
    """Remove the lock of a folder that is gone; call it with the lock held."""
    (entry.parent / FOLDER / entry.name).unlink(missing_ok=True)


def _acquire(path: Path, what: str, wait: bool) -> int:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise
                logger.info("waiting for another process that compiles %s", what or path.name)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_still(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether `path` is the file that is open: another process may have removed the lock with its entry."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
