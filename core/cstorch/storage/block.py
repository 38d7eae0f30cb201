"""A run of bytes that a checkpoint stores, and how to get at them: in memory, on csx, still to be drawn, in a file."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from cstorch.device import CsxTensor, to_host
from cstorch.device.drawn import drawn
from cstorch.storage.source import Source

_PIECE = 1 << 22  # of what is drawn while it is written
SMALL = 1 << 16
"""Up to so many bytes are copied rather than written from where they are."""


@dataclass(eq=False, slots=True)
class Block:
    """A run of bytes to be stored.

    Attributes:
        owner: A tensor that has them.
        start: Where they begin in the owner's storage; None to take the owner's elements in order.
        nbytes: How many.
        dtype: Of the tensors that view them; None when they differ.
        source: Where the bytes are in another file, to be copied from there.
    """

    owner: torch.Tensor
    start: int | None
    nbytes: int
    dtype: torch.dtype | None
    source: Source | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the bytes are in memory of the cpu, many, one after another."""
        return self._is_in_memory and self.source is None and self.nbytes > SMALL

    @property
    def _is_in_memory(self) -> bool:
        return self.start is not None and type(self.owner) is torch.Tensor and self.owner.device.type == "cpu"

    @property
    def _address(self) -> int:
        return self.owner.untyped_storage().data_ptr() + (self.start or 0)

    def buffer(self) -> memoryview:
        """The bytes of a plain block, as long as its owner lives."""
        return _bytes_at(self._address, self.nbytes)

    def pieces(self) -> Iterator[Any]:
        """The bytes in order, as buffers on the host, each valid until the next; large initialisers are drawn."""
        owner = self.owner
        if self.is_plain:
            yield self.buffer()
            return
        if isinstance(owner, CsxTensor) and owner.is_pending and owner._pending is not None and self.start == 0:
            parts = drawn(owner._pending, _PIECE) if owner._pending.memory.key.nbytes() == self.nbytes else None
            if parts is not None:
                for part in parts:
                    yield memoryview(part.view(torch.uint8).numpy())  # type: ignore[arg-type]
                return
        with self.open() as data:
            yield data

    def small(self) -> bytes:
        """The bytes, copied; for few."""
        if self.nbytes and self._is_in_memory:
            return ctypes.string_at(self._address, self.nbytes)
        with self.open() as data:
            return bytes(data)

    @contextlib.contextmanager
    def open(self) -> Iterator[Any]:
        """The bytes, as a buffer on the host that is valid within."""
        if self.nbytes == 0:
            yield b""
            return
        with _on_host(self.owner) as host:
            if self.start is None:
                host = host.resolve_conj().resolve_neg().contiguous()
            elif host.device.type != "cpu":
                host = torch.empty(0, dtype=torch.uint8, device=host.device).set_(
                    host.untyped_storage(), self.start, (self.nbytes,), (1,)
                )
            is_copy = self.start is None or host.device.type != "cpu"
            host = host.cpu()
            at = host.data_ptr() if is_copy else host.untyped_storage().data_ptr() + (self.start or 0)
            yield _bytes_at(at, self.nbytes)


def _bytes_at(address: int, count: int) -> memoryview:
    return memoryview((ctypes.c_char * count).from_address(address)).cast("B")


@contextlib.contextmanager
def _on_host(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if isinstance(tensor, CsxTensor) and tensor.is_pending:
        assert tensor._pending is not None
        with tensor._pending.peek() as contents:
            yield contents
    else:
        yield to_host(tensor, "saving a tensor").detach()
