"""Finds out what bytes of which tensors a checkpoint stores: every run of memory once, however many views it has.

Tensors whose memory overlaps are views of one block, and are so again after loading. A tensor whose memory nobody
else uses is stored alone and contiguous, not with the rest of its storage. A tensor that repeats one element over
its whole shape is stored as that element. Nothing is copied here, and what is pending on csx stays pending.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from cstorch._torch_private.serialization import storage_id
from cstorch.device import CsxTensor, to_host
from cstorch.errors import CheckpointContentError
from cstorch.storage.block import Block
from cstorch.storage.dtypes import NUMBERS
from cstorch.storage.hdf5 import MAX_RANK
from cstorch.storage.source import Source
from cstorch.storage.tree import Path, dotted

_BASE = 16  # blocks of several views begin at a multiple of the largest element's size


@dataclass(eq=False, slots=True)
class Entry:
    """A tensor of the state dict.

    Attributes:
        name: Its dotted path, as the HDF5 dataset is called.
        tensor: The tensor.
        block: The bytes that it is a view of.
        offset: Where in the block it begins, in bytes.
        shape: Its shape.
        stride: Its strides in the block.
        copy: Its own elements in order, for HDF5, when the block does not have them so.
    """

    name: bytes
    tensor: torch.Tensor
    like: torch.Tensor
    block: Block
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    copy: Block | None = None

    @property
    def is_constant(self) -> bool:
        """Whether one element is repeated over the whole shape."""
        return not any(self.stride) and math.prod(self.shape) > 1


class Gathering:
    """The tensors of a state dict, and the blocks that they are views of.

    Args:
        sources: Of storages, by their identity, that are unread bytes of other files.

    Attributes:
        entries: In the order of their numbers. Complete after `arrange`.
        blocks: In the order of the file.
        aliases: Names of further places of a tensor, with its number: datasets of HDF5 alone.
    """

    def __init__(self, sources: dict[int, Source]) -> None:
        self._sources = sources
        self.entries: list[Entry] = []
        self.blocks: list[Block] = []
        self._numbers: dict[int, int] = {}
        self._found: list[tuple[bytes, torch.Tensor, torch.Tensor]] = []
        self.aliases: list[tuple[bytes, int]] = []
        self._names: set[bytes] = set()
        self._constants: dict[int, torch.Tensor] = {}

    def add(self, tensor: torch.Tensor, path: Path) -> int:
        """The number of `tensor`, which is at `path`.

        Raises:
            CheckpointContentError: it is of a kind that has no contents, or that HDF5 has no form for.
        """
        number = self._numbers.get(id(tensor))
        if number is None:
            like = self._like(tensor, path)
            number = self._numbers[id(tensor)] = len(self._found)
            self._found.append((self._name(path), tensor, like))
        else:
            self.aliases.append((self._name(path), number))
        return number

    def entry_of(self, tensor: torch.Tensor) -> Entry | None:
        """The entry of a tensor that was added."""
        number = self._numbers.get(id(tensor))
        return None if number is None else self.entries[number]

    def _like(self, tensor: torch.Tensor, path: Path) -> torch.Tensor:
        """A tensor with the geometry of `tensor` and the identity of its memory, checked."""
        kind = type(tensor)
        like: torch.Tensor = tensor
        if isinstance(tensor, CsxTensor):
            if tensor.is_pending:
                assert tensor._pending is not None
                return self._pending(tensor._pending)
            like = to_host(tensor, "saving a tensor")
        elif kind not in (torch.Tensor, torch.nn.Parameter):
            raise _refusal(path, f"is a tensor of the class {kind.__module__}.{kind.__qualname__}")
        if like.is_nested:
            raise _refusal(path, "is a nested tensor", "list(tensor.unbind())")
        if like.layout is not torch.strided:
            raise _refusal(path, f"is a tensor of the layout {like.layout}", "tensor.to_dense()")
        if like.dtype not in NUMBERS:
            raise _refusal(path, f"is a tensor of {like.dtype}", "tensor.dequantize() or tensor.to(another dtype)")
        if like.device.type == "meta":
            raise _refusal(path, "is a tensor on the device meta, which has a shape and no contents")
        if like.dim() > MAX_RANK:
            raise _refusal(path, f"has {like.dim()} dimensions, and HDF5 at most {MAX_RANK}", "tensor.flatten()")
        return like

    def _pending(self, pending: Any) -> torch.Tensor:
        """Its meta tensor; for a constant a tensor of that one value, the same for all views of it."""
        value = pending.constant()
        meta: torch.Tensor = pending.meta
        if value is None or not pending.is_whole or meta.numel() < 2:
            return meta
        known = self._constants.get(storage_id(meta))
        if known is None or known.dtype != meta.dtype:
            known = self._constants[storage_id(meta)] = torch.full((1,), value, dtype=meta.dtype)
        return known.expand(1 if meta.dim() == 0 else meta.shape)

    def _name(self, path: Path) -> bytes:
        """A link name for HDF5, like no other: no "/" and no NUL, and not "."."""
        text = dotted(path).replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
        plain = ("%2E" if text == "." else text).encode(errors="surrogatepass")
        name, n = plain, 1
        while name in self._names or name.startswith(b"__cstorch__."):
            n += 1
            name = b"%s~%d" % (plain.replace(b"__cstorch__", b"%5F_cstorch__"), n)
        self._names.add(name)
        return name

    def arrange(self) -> None:
        """Find the blocks, now that all tensors are known."""
        groups: dict[int, list[int]] = {}
        spans: list[tuple[int, int]] = []
        for i, (_, _, like) in enumerate(self._found):
            groups.setdefault(storage_id(like), []).append(i)
            spans.append(_span(like))
        places: list[Entry | None] = [None] * len(self._found)
        for members in groups.values():
            for cluster in _overlapping(members, spans):
                if len(cluster) == 1:
                    places[cluster[0]] = self._alone(*self._found[cluster[0]], spans[cluster[0]])
                else:
                    self._together(cluster, spans, places)
        self.entries = [entry for entry in places if entry is not None]
        seen: dict[int, Block] = {}
        for entry in self.entries:
            for block in (entry.block, entry.copy):
                if block is not None:
                    seen.setdefault(id(block), block)
        self.blocks = list(seen.values())
        for block in self.blocks if self._sources else ():
            source = self._sources.get(storage_id(block.owner))
            if source is None:
                continue
            if block.start == 0 and block.nbytes == source.size:
                block.source = source
            else:
                source.check()

    def _alone(self, name: bytes, tensor: torch.Tensor, like: torch.Tensor, span: tuple[int, int]) -> Entry:
        nbytes = like.numel() * like.dtype.itemsize
        shape = tuple(like.shape)
        owner = _owner(tensor, like)
        if nbytes == 0 or (like.is_contiguous() and not like.is_conj() and not like.is_neg()):
            block = Block(owner, span[0], nbytes, like.dtype)
            return Entry(name, tensor, like, block, 0, shape, tuple(like.stride()))
        if like.numel() > 1 and not any(like.stride()) and not like.is_conj() and not like.is_neg():
            block = Block(owner, span[0], like.dtype.itemsize, like.dtype)
            return Entry(name, tensor, like, block, 0, shape, tuple(like.stride()))
        return Entry(name, tensor, like, Block(owner, None, nbytes, like.dtype), 0, shape, _contiguous(shape))

    def _together(self, cluster: list[int], spans: list[tuple[int, int]], places: list[Entry | None]) -> None:
        low = min(spans[i][0] for i in cluster) // _BASE * _BASE
        high = max(spans[i][1] for i in cluster)
        _, tensor, like = self._found[cluster[0]]
        kinds = {self._found[i][2].dtype for i in cluster}
        block = Block(_owner(tensor, like), low, high - low, like.dtype)
        block.dtype = like.dtype if len(kinds) == 1 else None
        for i in cluster:
            name, tensor, like = self._found[i]
            if like.is_conj() or like.is_neg():
                places[i] = self._alone(name, tensor, like, spans[i])
                continue
            entry = Entry(name, tensor, like, block, spans[i][0] - low, tuple(like.shape), tuple(like.stride()))
            if not like.is_contiguous() and not entry.is_constant:
                entry.copy = Block(_owner(tensor, like), None, like.numel() * like.dtype.itemsize, like.dtype)
            places[i] = entry


def _owner(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The one of the two that has the contents."""
    return tensor if like.device.type == "meta" else like


def _refusal(path: Path, what: str, advice: str = "a plain tensor") -> CheckpointContentError:
    return CheckpointContentError(f"{dotted(path)!r} {what}, which cannot be stored. Save {advice} instead.")


def _span(like: torch.Tensor) -> tuple[int, int]:
    """The bytes of the storage between the first and the last element."""
    size = like.dtype.itemsize
    first = int(like.storage_offset()) * size
    if like.is_contiguous():
        return first, first + like.numel() * size
    reach = sum((n - 1) * step for n, step in zip(like.shape, like.stride(), strict=True))
    return first, first + int(reach + 1) * size


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps: list[int] = []
    step = 1
    for n in reversed(shape):
        steps.append(step)
        step *= max(n, 1)
    return tuple(reversed(steps))


def _overlapping(members: list[int], spans: list[tuple[int, int]]) -> list[list[int]]:
    """`members` in clusters of which each has no byte in common with another one."""
    if len(members) == 1:
        return [members]
    clusters: list[list[int]] = []
    end = -1
    for i in sorted(members, key=spans.__getitem__):
        start, stop = spans[i]
        if start >= end or stop <= start:
            clusters.append([i])
            end = max(end, stop) if stop > start else end
        else:
            clusters[-1].append(i)
            end = max(end, stop)
    return clusters
