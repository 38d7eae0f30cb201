"""ClusterConfig: the cluster that a CSX backend runs on."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cstorch.legacy import warn_of_old


@dataclass(frozen=True)
class _Field:
    """What may be assigned to a field.

    Attributes:
        kinds: Of one of these types.
        accepts: Whether a value of such a type is valid.
        expected: What is valid, in words.
    """

    kinds: tuple[type, ...]
    accepts: Callable[[Any], bool]
    expected: str


def _number(least: int, optional: bool = False) -> _Field:
    kinds = (int, type(None)) if optional else (int,)
    words = f"an int of at least {least}{', or None' if optional else ''}"
    return _Field(kinds, lambda value: value is None or value >= least, words)


def _all_texts(values: Any) -> bool:
    return values is None or all(isinstance(v, (str, os.PathLike)) and str(v) != "" for v in values)


def _is_address(value: str | None) -> bool:
    if value is None or "://" in value:
        return True
    host, _, port = value.rpartition(":")
    return host != "" and port.isdigit() and 0 < int(port) < 65536


def _are_labels(values: Any) -> bool:
    return values is None or all(isinstance(v, str) and "=" in v and not v.startswith("=") for v in values)


_LIST = (list, tuple, type(None))
_FIELDS = {
    "mgmt_address": _Field(
        (str, type(None)), _is_address, '"host:port", an address with a scheme that a plugin knows, or None'
    ),
    "credentials_path": _Field(
        (str, os.PathLike, type(None)), lambda value: value != "", "the path of a file, or None"
    ),
    "num_csx": _number(1),
    "max_wgt_servers": _number(1),
    "max_act_per_csx": _number(1),
    "num_workers_per_csx": _number(1),
    "job_time_sec": _number(1, optional=True),
    "mount_dirs": _Field(_LIST, _all_texts, "a list of paths, or None"),
    "python_paths": _Field(_LIST, _all_texts, "a list of paths, or None"),
    "job_labels": _Field(_LIST, _are_labels, 'a list of "key=value" texts such as ["team=vision"], or None'),
    "restart_attempts": _number(0),
}


_OLD = ("mgmt_namespace", "job_priority", "disable_version_check")
"""Fields of other releases, about the management of a cluster: accepted with a warning, and without effect."""


@dataclass
class ClusterConfig:
    """Config details of the Cerebras Wafer-Scale Cluster (`cerebras.pytorch.distributed.ClusterConfig`).

    A field is checked when it is assigned. Fields that say nothing to the embedded appliance are checked all the same,
    so that a program that is right here is right for the cluster.

    Attributes:
        mgmt_address: Where the systems meet. None: the backend starts `num_csx - 1` systems on this host, beside this
            process, which is one itself; under torchrun, torchrun's own rendezvous. "host:port": the backend listens
            there and waits for systems that were started with `cstorch system host:port` on this or other hosts. "cuda://0":
            programs run on that GPU of this host. With another scheme ("ray://..."): a plugin connects.
        credentials_path: A file with a secret of at least 16 bytes, readable by its owner alone. A system must show
            that it knows the secret before it is let in. Systems that the backend starts need none.
        num_csx: Systems to run on. The batch of a step is divided among them, and gradients are averaged.
        max_wgt_servers: No effect here: every system holds the weights itself.
        max_act_per_csx: No effect here: the controller receives the activations itself.
        num_workers_per_csx: Processes that run the input function; 1 runs it in this process.
        job_time_sec: A DataExecutor ends with an error at the first step after so many seconds.
        mount_dirs: No effect here: all processes see the files of their host.
        python_paths: Folders that come first on the import path of workers and systems that the backend starts.
        job_labels: Texts "key=value"; in the log line with which a run on several systems begins.
        restart_attempts: Ours, beyond the specification. How often, in the life of the backend, systems that it has
            started are started again when one has died or hangs; the run goes on from this process's replica of the
            state with the results of an unbroken run. 0: the first failure is an error.

    Raises:
        TypeError, ValueError: at an assignment, of a value of a wrong type or out of range; the message names both.
        AttributeError: at an assignment, to a field that does not exist.
    """

    mgmt_address: str | None = None
    credentials_path: str | None = None
    num_csx: int = 1
    max_wgt_servers: int = 24
    max_act_per_csx: int = 1
    num_workers_per_csx: int = 1
    job_time_sec: int | None = None
    mount_dirs: list[str] | None = None
    python_paths: list[str] | None = None
    job_labels: list[str] | None = None
    restart_attempts: int = 1

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OLD:
            warn_of_old(f"ClusterConfig({name}={value!r})", "It has no effect here: there is no cluster to manage.")
            object.__setattr__(self, name, value)
            return
        if name not in _FIELDS:
            raise AttributeError(f"ClusterConfig has no field {name!r}; it has {', '.join(_FIELDS)}.")
        field = _FIELDS[name]
        if isinstance(value, bool) or not isinstance(value, field.kinds):
            raise TypeError(f"ClusterConfig.{name} is {value!r} ({type(value).__name__}), expected {field.expected}.")
        if not field.accepts(value):
            raise ValueError(f"ClusterConfig.{name} is {value!r}, expected {field.expected}.")
        object.__setattr__(self, name, value)


_make = ClusterConfig.__init__


@functools.wraps(_make)
def _init(self: ClusterConfig, *args: Any, **kwargs: Any) -> None:
    old = {name: kwargs.pop(name) for name in _OLD if name in kwargs and name not in self.__dataclass_fields__}
    _make(self, *args, **kwargs)
    for name, value in old.items():
        setattr(self, name, value)


ClusterConfig.__init__ = _init  # type: ignore[method-assign]
