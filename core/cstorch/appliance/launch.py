"""Starts systems as processes on this host, says how they ended, and leaves none behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from weakref import finalize

_POLITE = 1.0  # seconds that a system has to end by itself


class LocalSystems:
    """The processes of systems 1 to `size - 1`.

    Args:
        size: Processes of the run, this one included.
        python_paths: Folders that come first on their import path.
        options: See `cstorch.appliance.system.serve`.

    Attributes:
        folder: A private folder in which they meet.
    """

    def __init__(self, size: int, python_paths: list[Any] | None, options: dict[str, Any]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="cstorch-systems-"))
        paths = [os.fspath(p) for p in python_paths or ()] + [p or os.getcwd() for p in sys.path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._end = finalize(self, _end, self._processes, self.folder, os.getpid())
        try:
            for rank in range(1, size):
                told = {**options, "rank": rank, "size": size, "folder": str(self.folder), "parent": os.getpid()}
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-c", "from cstorch.appliance.system import main; main()", json.dumps(told)],
                        stdin=subprocess.PIPE,
                        env=environment,
                        start_new_session=True,  # Ctrl-C is for the controller, which ends them
                    )
                )
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The process ids, by rank from 1."""
        return [process.pid for process in self._processes]

    def ended(self, within: float = 0.0) -> dict[int, str]:
        """The systems that have ended, each with how, after waiting for a first one.

        Args:
            within: Seconds to wait.
        """
        until = time.monotonic() + within
        while True:
            found = {
                rank: f"(process {process.pid}) {_how(process.returncode)}"
                for rank, process in enumerate(self._processes, 1)
                if process.poll() is not None
            }
            if found or time.monotonic() >= until:
                return found
            time.sleep(0.01)

    def close(self) -> None:
        """End all, whatever they do."""
        self._end()


def _how(status: int) -> str:
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return f"ended with exit status {status}"


def _end(processes: list[subprocess.Popen[bytes]], folder: Path, owner: int) -> None:
    if os.getpid() != owner:  # in a fork of the controller
        return
    for process in processes:
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
    until = time.monotonic() + _POLITE
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    shutil.rmtree(folder, ignore_errors=True)
