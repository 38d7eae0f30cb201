"""What is left in shared memory, by the processes of a test alone: others on the machine come and go."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator


@contextlib.contextmanager
def nothing_left(seconds: float = 20) -> Iterator[None]:
    """Fail when something that appeared within is there for so many seconds after."""
    before = set(os.listdir("/dev/shm"))
    yield
    left = set(os.listdir("/dev/shm")) - before
    end = time.monotonic() + seconds
    while left and time.monotonic() < end:
        time.sleep(0.1)
        left &= set(os.listdir("/dev/shm"))
    assert not left
