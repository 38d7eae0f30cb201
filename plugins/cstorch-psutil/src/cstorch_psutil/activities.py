"""What a run costs the machine: memory, CPU, I/O, page faults and threads of this process and its descendants.

Descendants are input workers, the workers of torch loaders and whatever else the program starts. What grows with time
(CPU seconds, bytes, faults) is counted from the activity's start; the last known figures of a process that has ended
stay in the count. What goes up and down (memory, threads) has its value now and the highest one seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from cstorch.utils.profiler import Activity

Figures = dict[str, float]


def descendants() -> list[psutil.Process]:
    """The processes that this one has started, and theirs."""
    found: list[psutil.Process] = psutil.Process().children(recursive=True)
    return found


def read(figures: Callable[[psutil.Process], Figures], process: psutil.Process) -> Figures | None:
    """The figures of a process; None for one that has ended meanwhile or that this user may not look at."""
    try:
        return figures(process)
    except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError, ProcessLookupError):
        return None


class Sampled(Activity):
    """An activity that looks at the processes at most once in `INTERVAL` seconds, since a look costs milliseconds."""

    INTERVAL = 0.2

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = clock() + self.INTERVAL
        self.sample()

    def update(self, batch_size: int) -> None:
        """A step has ended: look, if it is time."""
        if self._clock() >= self._due:
            self.sample()
            self._due = self._clock() + self.INTERVAL

    def sample(self) -> None:
        """Look at the processes."""
        raise NotImplementedError


class Level(Sampled):
    """Something that goes up and down: its value now and the highest one seen."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._peak: Figures = {}
        super().__init__(clock)

    @staticmethod
    def now() -> Figures:
        """The values now."""
        raise NotImplementedError

    def sample(self) -> None:
        """Look at the processes."""
        self._now = self.now()
        for name, value in self._now.items():
            self._peak[name] = max(self._peak.get(name, 0), value)

    def compute(self) -> dict[str, Any]:
        """Each value now, and the highest one seen as `peak_...`."""
        self.sample()
        return {**self._now, **{f"peak_{name}": value for name, value in self._peak.items()}}


class Count(Sampled):
    """Something that only grows, summed over this process and its descendants since the start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._last: dict[tuple[int, float], Figures] = {}
        super().__init__(clock)
        self._first = dict(self._last)  # a process that is not in here began later, at zero
        self._started = clock()

    @staticmethod
    def of(process: psutil.Process) -> Figures:
        """The figures of one process."""
        raise NotImplementedError

    def sample(self) -> None:
        """Look at the processes."""
        for process in [psutil.Process(), *descendants()]:
            found = read(self.of, process)
            if found is not None:
                self._last[process.pid, process.create_time()] = found  # a number may be given to another process

    def compute(self) -> dict[str, Any]:
        """What has been counted since the start."""
        self.sample()
        total: Figures = {}
        for known, found in self._last.items():
            first = self._first.get(known, {})
            for name, value in found.items():
                total[name] = total.get(name, 0) + value - first.get(name, 0)
        return total


class ProcessMemory(Level):
    """Bytes of memory of this process: resident (`rss`) and of those shared with others."""

    @classmethod
    def name(cls) -> str:
        """`process_memory`."""
        return "process_memory"

    @staticmethod
    def now() -> Figures:
        """The values now."""
        info = psutil.Process().memory_info()
        return {"rss": info.rss, "shared": getattr(info, "shared", 0)}


class ChildrenMemory(Level):
    """Resident bytes of all descendants (pages that several share count for each) and how many there are."""

    @classmethod
    def name(cls) -> str:
        """`children_memory`."""
        return "children_memory"

    @staticmethod
    def now() -> Figures:
        """The values now."""
        found = [read(lambda process: {"rss": process.memory_info().rss}, child) for child in descendants()]
        there = [figures for figures in found if figures is not None]
        return {"rss": sum(figures["rss"] for figures in there), "processes": len(there)}


class Threads(Level):
    """Threads of this process and of all descendants."""

    @classmethod
    def name(cls) -> str:
        """`threads`."""
        return "threads"

    @staticmethod
    def now() -> Figures:
        """The values now."""
        found = [read(lambda process: {"threads": process.num_threads()}, child) for child in descendants()]
        return {
            "process": psutil.Process().num_threads(),
            "children": sum(figures["threads"] for figures in found if figures is not None),
        }


class Cpu(Count):
    """Seconds of CPU, and how many cores they kept busy on average, in percent: 200 is two whole cores."""

    @classmethod
    def name(cls) -> str:
        """`process_cpu`."""
        return "process_cpu"

    @staticmethod
    def of(process: psutil.Process) -> Figures:
        """The figures of one process."""
        times = process.cpu_times()
        return {"user": times.user, "system": times.system}

    def compute(self) -> dict[str, Any]:
        """Seconds since the start, and the percentage."""
        total = super().compute()
        elapsed = max(self._clock() - self._started, 1e-9)
        return {**total, "percent": 100 * sum(total.values()) / elapsed}


class InputOutput(Count):
    """Bytes read from and written to storage, and calls that read and wrote anything."""

    @classmethod
    def name(cls) -> str:
        """`process_io`."""
        return "process_io"

    @staticmethod
    def of(process: psutil.Process) -> Figures:
        """The figures of one process."""
        counters = process.io_counters()
        return {key: getattr(counters, key) for key in ("read_bytes", "write_bytes", "read_count", "write_count")}


class PageFaults(Count):
    """Page faults: `minor` found their page in memory, `major` waited for a disk."""

    @classmethod
    def name(cls) -> str:
        """`page_faults`."""
        return "page_faults"

    @staticmethod
    def of(process: psutil.Process) -> Figures:
        """The figures of one process; psutil has none on Linux, so they are read where it reads the others."""
        stat = Path(psutil.PROCFS_PATH, str(process.pid), "stat").read_text()
        fields = stat.rpartition(")")[2].split()  # a program's name may hold spaces
        return {"minor": int(fields[7]), "major": int(fields[9])}


ACTIVITIES = (ProcessMemory, ChildrenMemory, Cpu, InputOutput, PageFaults, Threads)
"""All activities of this package."""
