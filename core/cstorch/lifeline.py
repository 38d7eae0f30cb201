"""Ends a process with the one that started it, however that ends."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path


def end_with_controller(lifeline: int, folder: Path | None = None) -> threading.Thread:
    """End this process as soon as the other end of a pipe is closed, which the controller holds as long as it lives.

    Args:
        lifeline: The descriptor of this end. Nothing is ever written to the pipe.
        folder: What the controller would have removed at its end, and is removed with it.

    Returns:
        The thread that waits for it.
    """

    def wait() -> None:
        os.read(lifeline, 1)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    thread = threading.Thread(target=wait, name="cstorch-lifeline", daemon=True)
    thread.start()
    return thread
