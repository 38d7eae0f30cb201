"""Ends a process with the one that started it, however that ends."""

from __future__ import annotations

import os
import threading


def end_with_controller(lifeline: int) -> None:
    """End this process as soon as the other end of a pipe is closed, which the controller holds as long as it lives.

    Args:
        lifeline: The descriptor of this end. Nothing is ever written to the pipe.
    """

    def wait() -> None:
        os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=wait, name="cstorch-lifeline", daemon=True).start()
