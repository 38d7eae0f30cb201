"""The process group of systems: they exchange through memory where all are on one host, and over sockets otherwise."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import distributed

from cstorch._torch_private.collectives import (
    HOST_GROUP,
    HOST_GROUP_CALLS,
    host_group_bytes,
    make_gloo_group,
    make_host_group,
)
from cstorch.appliance.meeting import awaited
from cstorch.backends import csx
from cstorch.compiler.cache import cache_folder
from cstorch.compiler.collectives import GROUP
from cstorch.native_source import built

dist: Any = distributed
logger = logging.getLogger("cstorch.systems")

_MOST = 8  # members that add up the tensors of all by themselves; beyond, gloo's ring has less to read
_NOT_HERE = (OSError, subprocess.SubprocessError, AttributeError)  # no compiler, no memfd, no pidfd, another user


def options_now(compile_dir: str | os.PathLike[str] | None) -> dict[str, Any]:
    """What the processes of a run go by, from the flags of this one, as plain values.

    Returns:
        "start_timeout" and "timeout" in seconds, "host_memory", and "compile_dir".
    """
    return {
        "start_timeout": csx.systems.start_timeout,
        "timeout": csx.systems.timeout,
        "host_memory": csx.systems.host_memory,
        "compile_dir": None if compile_dir is None else os.fspath(compile_dir),
    }


def make_systems_group(
    store: Any, rank: int, size: int, host: str | None, options: dict[str, Any], watch: Callable[[], None]
) -> Any:
    """The process group of all systems, which compiled programs find by its name.

    Args:
        store: Where they meet.
        rank: The rank of this process.
        size: Processes of the run.
        host: The address to bind sockets to, where they do not all have the same memory.
        options: See `options_now`.
        watch: Called while waiting; raises when a process cannot come any more.
    """
    within = dist.PrefixStore("group", store)
    return host_group(within, rank, size, options, watch) or make_gloo_group(
        GROUP, within, rank, size, host, options["timeout"]
    )


def host_group(store: Any, rank: int, size: int, options: dict[str, Any], watch: Callable[[], None]) -> Any:
    """The group of systems that are all on this host, or None where they are not, for all of them alike.

    Rank 0 makes the memory, the others open it through /proc, and all must have succeeded.
    """
    wait = options["start_timeout"]
    memory = -1
    try:
        if rank == 0:
            library, memory = _made(size, options)
            store.set(
                "memory", "" if library is None else json.dumps([_boot(), os.getpid(), memory, _identity(memory)])
            )
        else:
            told = awaited(store, "memory", wait, watch, "the controller has not made the systems' memory").decode()
            library, memory = _opened(told, options)
        store.set(f"process/{rank}", "" if library is None else str(os.getpid()))
        members = [
            awaited(store, f"process/{r}", wait, watch, f"system {r} has not opened the memory of the systems").decode()
            for r in range(size)
        ]
        if library is None or not all(members):
            return None
        lives = [-1 if r == rank else os.pidfd_open(int(pid)) for r, pid in enumerate(members)]
        group = make_host_group(library, GROUP, store, rank, size, memory, lives, options["timeout"])
        if rank == 0:  # its memory must be there until all have opened it
            logger.info("the %d systems are on one host and exchange through its memory", size)
        return group
    finally:
        if memory >= 0:
            os.close(memory)


def _made(size: int, options: dict[str, Any]) -> tuple[Path | None, int]:
    """The library of groups of one host and a file of memory for `size` processes, or None."""
    if not options["host_memory"] or size > _MOST:
        return None, -1
    try:
        library = _library(options)
        memory = os.memfd_create("cstorch-systems")
    except _NOT_HERE as error:
        logger.info("systems of one host exchange over sockets: %s", error)
        return None, -1
    os.ftruncate(memory, host_group_bytes(library, size))
    return library, memory


def _opened(told: str, options: dict[str, Any]) -> tuple[Path | None, int]:
    """The library, and the file that rank 0 has made, or None when this process is elsewhere."""
    if not told:
        return None, -1
    boot, pid, number, identity = json.loads(told)
    if boot != _boot():
        return None, -1
    memory = -1
    try:
        os.close(os.pidfd_open(pid))
        memory = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        if _identity(memory) == identity:  # else `pid` is another process, in another container
            return _library(options), memory
    except _NOT_HERE as error:
        logger.info("this system exchanges over sockets: %s", error)
    if memory >= 0:
        os.close(memory)
    return None, -1


def _library(options: dict[str, Any]) -> Path:
    return built(HOST_GROUP, cache_folder(options["compile_dir"]), HOST_GROUP_CALLS)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _identity(file: int) -> list[int]:
    info = os.fstat(file)
    return [info.st_dev, info.st_ino]
