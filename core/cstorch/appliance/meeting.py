"""Where the controller and the systems of a run find one another, and show who they are."""

from __future__ import annotations

import contextlib
import datetime
import hmac
import os
import secrets
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import distributed

from cstorch.errors import BackendError

dist: Any = distributed

LOOPBACK = "127.0.0.1"
_POLL = 0.02  # seconds


def local_store(folder: Path, size: int) -> Any:
    """The store of processes on one host that were started by one of them: a file, and no port."""
    return dist.FileStore(str(folder / "store"), size)


def listening_store(address: str, size: int, timeout: float) -> Any:
    """The store at which the controller waits for systems that were started by themselves.

    Raises:
        BackendError: nobody can listen at `address`.
    """
    host, port = split_address(address)
    with contextlib.ExitStack() as stack:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            listener = stack.enter_context(socket.socket(family))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(128)
        except OSError as error:
            raise BackendError(
                f"cluster_config.mgmt_address is {address!r}, where this process cannot listen: {error}. Name an "
                "address of this host and a port that is free."
            ) from error
        stack.pop_all()
    return dist.TCPStore(
        host, port, None, True, datetime.timedelta(seconds=timeout), wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )  # fmt: skip


def joining_store(address: str, timeout: float) -> Any:
    """The store of a controller at `address`.

    Raises:
        BackendError: nobody answers there.
    """
    host, port = split_address(address)
    try:
        return dist.TCPStore(host, port, None, False, datetime.timedelta(seconds=timeout), wait_for_workers=False)
    except RuntimeError as error:
        raise BackendError(
            f"no controller answers at {address!r} within {timeout:g} seconds. Start the training program with "
            f'ClusterConfig(mgmt_address="{address}"), and look whether a firewall is between the hosts.'
        ) from error


def torchrun_store(timeout: float) -> tuple[Any, int, int]:
    """The store of a run that torchrun started, this process's rank and the number of processes."""
    wait = datetime.timedelta(seconds=timeout)
    store, rank, size = next(iter(dist.rendezvous("env://", timeout=wait)))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"cstorch/{attempt}", store), rank, size


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port"."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def own_address(towards: str) -> str:
    """The address of this host at which `towards` can reach it: loopback, where that is this host's loopback."""
    family, _, _, _, where = socket.getaddrinfo(towards, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # sends nothing
        found: str = probe.getsockname()[0]
    return found


def read_secret(path: str | os.PathLike[str] | None) -> bytes | None:
    """The shared secret of a `credentials_path`.

    Raises:
        BackendError: the file cannot be read, is too short, or is readable by others.
    """
    if path is None:
        return None
    try:
        mode = Path(path).stat().st_mode
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise BackendError(f"the credentials_path {os.fspath(path)!r} cannot be read: {error.strerror}.") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BackendError(
            f"the credentials_path {os.fspath(path)!r} can be read or written by others (mode "
            f"{stat.S_IMODE(mode):o}). Say: chmod 600 {os.fspath(path)}"
        )
    if len(secret) < 16:
        raise BackendError(
            f"the secret in the credentials_path {os.fspath(path)!r} has {len(secret)} bytes, expected at least 16. "
            f"Make one: openssl rand -hex 32 > {os.fspath(path)}"
        )
    return secret


def _proof(secret: bytes | None, question: bytes, who: str) -> bytes:
    return hmac.digest(secret or b"none", question + who.encode(), "sha256")


def admit(store: Any, size: int, secret: bytes | None, timeout: float, watch: Callable[[], None]) -> None:
    """Wait, as the controller, until all systems are there and have shown that they know the secret.

    Args:
        store: Where they meet.
        size: Processes of the run.
        secret: The secret, or None for none.
        timeout: Seconds to wait.
        watch: Called while waiting; raises when a system cannot come any more.

    Raises:
        BackendError: a system does not come, or does not know the secret.
    """
    question = secrets.token_bytes(32)
    store.set("question", question)
    for rank in range(1, size):
        answer = awaited(store, f"answer/{rank}", timeout, watch, f"system {rank} of {size - 1} has not come")
        theirs, proof = answer[:32], answer[32:]
        if not hmac.compare_digest(proof, _proof(secret, question, f"system {rank}")):
            raise BackendError(
                f"system {rank} does not know the secret of the controller's credentials_path, so it is not let in. "
                "Give all processes of the run a copy of one file."
            )
        store.set(f"admitted/{rank}", _proof(secret, theirs, "controller"))


def enter(store: Any, rank: int, secret: bytes | None, timeout: float) -> None:
    """Show, as a system, that this process knows the secret, and that the controller does.

    Raises:
        BackendError: the controller does not answer, or does not know the secret.
    """
    question = awaited(store, "question", timeout, lambda: None, "the controller has not begun")
    mine = secrets.token_bytes(32)
    store.set(f"answer/{rank}", mine + _proof(secret, question, f"system {rank}"))
    proof = awaited(store, f"admitted/{rank}", timeout, lambda: None, "the controller has not let this system in")
    if not hmac.compare_digest(proof, _proof(secret, mine, "controller")):
        raise BackendError("the controller does not know the secret of this system's credentials, so nothing is run.")


def awaited(store: Any, name: str, timeout: float, watch: Callable[[], None], problem: str) -> bytes:
    """What another process writes to `store` under `name`.

    Raises:
        BackendError: it is not there within `timeout` seconds; `problem` says what that means.
    """
    end = time.monotonic() + timeout
    while not store.check([name]):
        watch()
        if time.monotonic() > end:
            raise BackendError(
                f"{problem} within {timeout:g} seconds. Look at what the processes of the run have printed; if they "
                "are only slow to start, raise cstorch.backends.csx.systems.start_timeout."
            )
        time.sleep(_POLL)
    value: bytes = store.get(name)
    return value
