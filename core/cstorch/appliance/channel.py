"""What goes between the controller and a system: one message for each run of a program, and commands between runs.

A message is a head of eight numbers and room for the inputs of the program in use, so that a run takes one message.
A command takes the same message, whose head says that an object follows.
"""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import torch

from cstorch.appliance.wire import Layout

_HEAD = 64
_ALIGNMENT = 64
_FOREVER = datetime.timedelta(days=3650)


class Order(IntEnum):
    """What the first number of a head says."""

    RUN = 0  # the program in use; the second says whether it draws random numbers, the third is their seed
    COMMAND = 1  # an object follows, of as many bytes as the second says
    END = 2


class Message:
    """One message and its parts.

    Args:
        layouts: The layouts of the inputs that it has room for, always contiguous.

    Attributes:
        whole: The bytes.
        head: The numbers of the head.
        inputs: The inputs, tensors in `whole`.
    """

    def __init__(self, layouts: Sequence[Layout]) -> None:
        places, size = [], _HEAD
        for layout in layouts:
            places.append(size)
            nbytes = layout.dtype.itemsize * torch.Size(layout.shape).numel()
            size += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self.whole = torch.zeros(size, dtype=torch.uint8)
        self.head = self.whole[:_HEAD].view(torch.int64)
        self.numbers = self.head.numpy()
        self.inputs = [
            self.whole[start : start + layout.dtype.itemsize * torch.Size(layout.shape).numel()]
            .view(layout.dtype)
            .view(layout.shape)
            for start, layout in zip(places, layouts, strict=True)
        ]


class Channel:
    """One end of the way to another process of the group.

    Args:
        group: The process group.
        peer: The rank of the other process.
    """

    def __init__(self, group: Any, peer: int) -> None:
        self._group, self.peer = group, peer
        self.message = Message([])

    def use(self, layouts: Sequence[Layout]) -> None:
        """From now on messages have room for these inputs; both ends must say so."""
        self.message = Message(layouts)

    def send(self, tensor: torch.Tensor) -> Any:
        """Begin to send; the work to wait for."""
        return self._group.send([tensor], self.peer, 0)

    def receive(self, tensor: torch.Tensor) -> torch.Tensor:
        """Fill `tensor`, however long that takes."""
        self._group.recv([tensor], self.peer, 0).wait(_FOREVER)
        return tensor

    def command(self, name: str, *args: Any) -> None:
        """Send an object."""
        data = torch.frombuffer(bytearray(pickle.dumps((name, args))), dtype=torch.uint8)
        self.message.numbers[:2] = Order.COMMAND, len(data)
        self.send(self.message.whole).wait()
        self.send(data).wait()

    def commanded(self) -> tuple[str, tuple[Any, ...]]:
        """The object that the message which has just come announces."""
        data = torch.empty(int(self.message.numbers[1]), dtype=torch.uint8)
        found: tuple[str, tuple[Any, ...]] = pickle.loads(self.receive(data).numpy().tobytes())
        return found

    def answer(self, value: Any) -> None:
        """Send the answer to a command."""
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        self.send(torch.tensor([len(data)])).wait()
        self.send(data).wait()

    def answered(self) -> Any:
        """Wait for the answer to a command."""
        size = int(self.receive(torch.zeros(1, dtype=torch.int64)))
        return pickle.loads(self.receive(torch.empty(size, dtype=torch.uint8)).numpy().tobytes())
