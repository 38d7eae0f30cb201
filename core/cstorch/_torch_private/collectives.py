"""PyTorch's private surface for collectives: functional ones, and groups beside the default one (torch 2.13)."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed._functional_collectives  # defines how they are compiled
from torch import distributed
from torch._C import _distributed_c10d

dist: Any = distributed
_c10d: Any = _distributed_c10d

__all__ = [
    "all_gather",
    "all_reduce",
    "group_to_compile_for",
    "is_connection_error",
    "make_gloo_group",
    "make_group",
    "make_host_group",
    "name_group",
    "unregister_group",
    "wait",
]

all_reduce = torch.ops._c10d_functional.all_reduce.default
all_gather = torch.ops._c10d_functional.all_gather_into_tensor.default
wait = torch.ops._c10d_functional.wait_tensor.default


def make_group(name: str, store: Any, rank: int, size: int, backend: Any, device: str, kind: Any) -> Any:
    """A process group that functional collectives find by `name`; the program's default group is left alone.

    Args:
        name: The name.
        store: Where its members meet.
        rank: The rank of this process.
        size: The number of members.
        backend: What does the work, such as a ProcessGroupGloo.
        device: The type of device whose tensors it takes.
        kind: The `ProcessGroup.BackendType` of `backend`.
    """
    group: Any = dist.ProcessGroup(store, rank, size)
    group._register_backend(torch.device(device), kind, backend)
    group._set_default_backend(kind)
    group._set_group_name(name)
    name_group(name, group)
    return group


def name_group(name: str, group: Any) -> None:
    """Let functional collectives find a group, which must be held elsewhere, by `name` too."""
    _c10d._register_process_group(name, group)


def make_gloo_group(name: str, store: Any, rank: int, size: int, host: str | None, timeout: float) -> Any:
    """A group over gloo, whose sockets are bound to the address of `host`, or found by gloo when it is None.

    Raises:
        RuntimeError: the members do not find one another.
    """
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=host) if host else gloo.create_default_device()]
    options._timeout = datetime.timedelta(seconds=timeout)
    options._threads = 2
    made = gloo(store, rank, size, options)
    made._set_sequence_number_for_group()
    return make_group(name, store, rank, size, made, "cpu", dist.ProcessGroup.BackendType.GLOO)


HOST_GROUP = Path(__file__).parent / "host_group.cpp"
"""The source of groups of one host, whose library calls those in `HOST_GROUP_CALLS`."""

HOST_GROUP_CALLS = ["torch_cpu", "c10"]


def host_group_bytes(library: Path, size: int) -> int:
    """The bytes of memory that `size` processes of one host exchange tensors through; few of them are touched."""
    count = ctypes.CDLL(str(library)).cstorch_host_group_bytes
    count.restype = ctypes.c_size_t
    return int(count(size))


def make_host_group(
    library: Path, name: str, store: Any, rank: int, size: int, file: int, lives: Sequence[int], timeout: float
) -> Any:
    """A group of processes of one host, which functional collectives find by `name`.

    Args:
        library: The library that `HOST_GROUP` was built into.
        name: The name.
        store: Where its members met.
        rank: The rank of this process.
        size: The number of members.
        file: The file of the memory that all of them map.
        lives: For each member a file that can be read once it has ended, or -1. The group closes them.
        timeout: Seconds that a member waits for another.

    Raises:
        RuntimeError: the memory cannot be mapped.
    """
    group: Any = dist.ProcessGroup(store, rank, size)
    group._set_group_name(name)
    name_group(name, group)
    make = ctypes.CDLL(str(library)).cstorch_host_group
    make.restype, make.argtypes = (
        ctypes.c_char_p,
        [ctypes.c_char_p, *[ctypes.c_int] * 3, ctypes.c_void_p, ctypes.c_int64],
    )
    problem = make(name.encode(), file, rank, size, (ctypes.c_int * size)(*lives), int(timeout * 1e3))
    if problem is not None:
        unregister_group(name)
        raise RuntimeError(problem.decode())
    return group


@contextlib.contextmanager
def group_to_compile_for(name: str, size: int) -> Iterator[None]:
    """Within, there is a group of that name and size, with which nothing can be exchanged."""
    group: Any = dist.ProcessGroup(dist.HashStore(), 0, size)
    group._set_group_name(name)
    _c10d._register_process_group(name, group)
    try:
        yield
    finally:
        unregister_group(name)


def unregister_group(name: str) -> None:
    """Forget a group; its connections close when nothing refers to it."""
    _c10d._unregister_process_group(name)


def is_connection_error(error: RuntimeError) -> bool:
    """Whether an error comes from the connection between processes, by the words that PyTorch and gloo use."""
    return any(word in str(error) for word in ("gloo", "Connection", "Timed out", "timed out", "Socket"))
