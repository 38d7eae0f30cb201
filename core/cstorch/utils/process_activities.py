"""Profiler activities of the process and its children, such as the workers of a dataloader: memory, cpu and io."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cstorch.utils.profiler import Activity

_MIB = 2**20
_TICK = os.sysconf("SC_CLK_TCK")


def _processes() -> Iterator[str]:
    """The folders below /proc of this process and all that descend from it."""
    waiting = [os.getpid()]
    while waiting:
        number = waiting.pop()
        folder = f"/proc/{number}"
        yield folder
        for thread in _entries(f"{folder}/task"):
            waiting += map(int, _text(f"{folder}/task/{thread}/children").split())


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # the process has ended
        return []


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _fields(path: str) -> dict[str, int]:
    """The numbers of a file of lines such as `VmRSS:  1024 kB`."""
    found = {}
    for line in _text(path).splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0])
    return found


class _OnDemand(Activity):
    """An activity that is read when it is asked for, whatever the steps."""

    def update(self, batch_size: int) -> None:
        """Nothing."""


class ProcessMemory(_OnDemand):
    """`memory`: resident MiB now of this process and of its children, and the most that this process ever had."""

    @classmethod
    def name(cls) -> str:
        """`memory`."""
        return "memory"

    def compute(self) -> dict[str, float]:
        """The values now."""
        own, *children = (_fields(f"{folder}/status") for folder in _processes())
        return {
            "process_mib": own.get("VmRSS", 0) * 1024 / _MIB,
            "process_peak_mib": own.get("VmHWM", 0) * 1024 / _MIB,
            "children_mib": sum(child.get("VmRSS", 0) for child in children) * 1024 / _MIB,
        }


class ProcessCpu(_OnDemand):
    """`cpu`: how many cores this process and its children kept busy, since it was last asked."""

    def __init__(self) -> None:
        self._time, self._before = time.perf_counter(), self._used()

    @classmethod
    def name(cls) -> str:
        """`cpu`."""
        return "cpu"

    def compute(self) -> dict[str, float]:
        """The values since the last call."""
        now, used = time.perf_counter(), self._used()
        elapsed = max(now - self._time, 1 / _TICK)
        cores = [max(after - before, 0.0) / elapsed for after, before in zip(used, self._before, strict=True)]
        self._time, self._before = now, used
        return {"process_cores": cores[0], "children_cores": cores[1]}

    def _used(self) -> tuple[float, float]:
        """Seconds of the processor: this process, and its children with those that have ended."""
        times = []
        for folder in _processes():
            fields = _text(f"{folder}/stat").rpartition(")")[2].split()
            times.append([int(field) / _TICK for field in fields[11:15]] or [0.0] * 4)
        (own_user, own_system, *ended), *children = times
        return own_user + own_system, sum(ended) + sum(map(sum, children))


class ProcessIo(_OnDemand):
    """`io`: MiB read and written by this process and its children since it was last asked.

    `read_mib` and `written_mib` count what the storage moved; `read_calls_mib` and `written_calls_mib` what was asked
    for, also from the page cache, pipes and sockets.
    """

    _NAMES = {
        "read_mib": "read_bytes",
        "written_mib": "write_bytes",
        "read_calls_mib": "rchar",
        "written_calls_mib": "wchar",
    }

    def __init__(self) -> None:
        self._before = self._counts()

    @classmethod
    def name(cls) -> str:
        """`io`."""
        return "io"

    def compute(self) -> dict[str, float]:
        """The values since the last call."""
        now, before = self._counts(), self._before
        self._before = now
        return {
            name: sum(count.get(field, 0) - before.get(process, {}).get(field, 0) for process, count in now.items())
            / _MIB
            for name, field in self._NAMES.items()
        }

    def _counts(self) -> dict[str, Any]:
        return {folder: _fields(f"{folder}/io") for folder in _processes()}


ACTIVITIES: dict[str, type[Activity]] = {kind.name(): kind for kind in (ProcessMemory, ProcessCpu, ProcessIo)}
"""Those that are there without a plugin, by name."""
