"""What goes between a worker and the controller: records of fixed size through pipes, the rest through a socket.

A record is (kind, slot). Kinds but BATCH are followed by one object on the socket, sent after its record so that
the controller, which waits for records, is there to take it.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

RECORD = struct.Struct("<II")

REQUEST = 0
"""In place of a generation of slots, in a record to a worker: states to combine follow on the socket."""


class Kind(IntEnum):
    """What a record announces."""

    READY = 0  # Ready follows
    BATCH = 1  # the batch in a slot
    LAYOUT = 2  # the Layout of the batches from here on follows
    SLOTS = 3  # a descriptor, bytes and number of new slots follow
    STATE = 4  # (checkpoint step, (state of the loader, that of its random numbers)) follows
    FAILED = 5  # Failure follows
    COMBINED = 6  # the state that the loader made of those of all workers follows


@dataclass(frozen=True)
class Run:
    """What a worker is told when the loop begins.

    Attributes:
        num_steps: Steps of the run.
        checkpoint_steps: Zero-indexed steps, ascending, at which the state of the loader is sent, beside the last.
        state: A combined state to go on from.
        strict: For the loader's `load_state_dict`.
        before: Steps of the earlier runs that it goes on from.
        random: The random numbers of each worker to go on from.
    """

    num_steps: int
    checkpoint_steps: Iterable[int]
    state: dict[str, Any] | None = None
    strict: bool = True
    before: int = 0
    random: list[Any] | None = None


@dataclass(frozen=True)
class Ready:
    """What a worker's loader says of itself."""

    length: int | None
    batch_size: int | None
    combines: bool


@dataclass(frozen=True)
class Failure:
    """What ended a worker: text for the error, the exception where it can be pickled, whether memory ran out."""

    step: int
    text: str
    error: BaseException | None
    out_of_memory: bool


def write(fd: int, kind: Kind, slot: int = 0) -> None:
    """Send a record."""
    os.write(fd, RECORD.pack(kind, slot))


def read(fd: int) -> list[tuple[int, int]]:
    """The records that are there, at least one; none when the other end is closed."""
    data = os.read(fd, RECORD.size * 512)
    while len(data) % RECORD.size:
        data += os.read(fd, RECORD.size - len(data) % RECORD.size)
    return list(RECORD.iter_unpack(data))


def as_picklable(value: Any) -> Any:
    """`value`, or None when it cannot be pickled and read again."""
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:
        return None
    return value
