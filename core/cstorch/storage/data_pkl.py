"""The data.pkl of a checkpoint: the state dict as `torch.load` unpickles it, tensors as views of zip records.

Written with the calls that `torch.save` writes, so that `weights_only=True` allows them. Containers and plain values
are pickled as they are; tensors on csx become cpu tensors.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from typing import Any

import torch

from cstorch._torch_private.serialization import (
    is_typed_storage,
    rebuild_parameter,
    rebuild_tensor,
    rebuild_tensor_of_dtype,
    storage_class,
    typed_length,
    untyped,
)
from cstorch.device import CsxTensor, to_host
from cstorch.errors import CheckpointContentError
from cstorch.storage.block import Block
from cstorch.storage.dtypes import NUMBERS
from cstorch.storage.gather import Entry, Gathering

PROTOCOL = 2  # the one that torch.load(weights_only=True) reads


_PLAIN = frozenset({str, int, float, bool, tuple, dict, type, type(rebuild_tensor), OrderedDict, torch.Tensor})
"""Types that no storage is of; most of what a state dict consists of."""


class _Storage:
    """Stands for a block, viewed as one dtype, in the pickle."""

    __slots__ = ("block", "dtype")

    def __init__(self, block: Block, dtype: torch.dtype | None) -> None:
        self.block, self.dtype = block, dtype


class _Data:
    """Stands for the tensor that a parameter is made of."""

    __slots__ = ("entry",)

    def __init__(self, entry: Entry) -> None:
        self.entry = entry


class _StatePickler(pickle.Pickler):
    def __init__(self, file: Any, gathering: Gathering) -> None:
        super().__init__(file, PROTOCOL)
        self._gathering = gathering
        self._keys = {id(block): str(i) for i, block in enumerate(gathering.blocks)}
        self._inner: dict[int, Block] = {}  # of storages that only pickled objects have

    def persistent_id(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return None
        if kind is _Storage:
            block, dtype = value.block, value.dtype
            if dtype is None:
                return "storage", torch.UntypedStorage, self._keys[id(block)], "cpu", block.nbytes
            return "storage", storage_class(dtype), self._keys[id(block)], "cpu", block.nbytes // dtype.itemsize
        if is_typed_storage(value):
            block, of = self._block_of(untyped(value)), storage_class(value.dtype) or torch.UntypedStorage
            return "storage", of, self._keys[id(block)], "cpu", typed_length(value)
        if isinstance(value, torch.UntypedStorage):
            return "storage", torch.UntypedStorage, self._keys[id(self._block_of(value))], "cpu", value.nbytes()
        return None

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is OrderedDict and not value and not vars(value):
            return OrderedDict, ()  # as it would be anyway, in a quarter of the time
        if kind is _Data:
            return _rebuilt(value.entry, False)
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        entry = self._gathering.entry_of(value)
        if entry is None:
            entry = self._inside_an_object(value)
        if entry is None:
            return NotImplemented
        if kind is not torch.Tensor and isinstance(value, torch.nn.Parameter):
            return rebuild_parameter, (_Data(entry), value.requires_grad, OrderedDict())
        return _rebuilt(entry, value.requires_grad)

    def _inside_an_object(self, tensor: torch.Tensor) -> Entry | None:
        """A tensor that is part of a pickled object gets bytes of its own, and no dataset."""
        if not isinstance(tensor, CsxTensor):
            return None
        host = to_host(tensor, "saving a tensor").detach().contiguous()
        if host.dtype not in NUMBERS:
            return None
        block = self._add(Block(host, int(host.storage_offset()) * host.dtype.itemsize, host.nbytes, host.dtype))
        return Entry(b"", tensor, host, block, 0, tuple(host.shape), tuple(host.stride()))

    def _block_of(self, storage: torch.UntypedStorage) -> Block:
        known = self._inner.get(storage._cdata)
        if known is None:
            owner = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            known = self._inner[storage._cdata] = self._add(Block(owner, 0, storage.nbytes(), torch.uint8))
        return known

    def _add(self, block: Block) -> Block:
        self._keys[id(block)] = str(len(self._gathering.blocks))
        self._gathering.blocks.append(block)
        return block


def _rebuilt(entry: Entry, requires_grad: bool) -> Any:
    """What makes the tensor out of its block."""
    dtype, block = entry.like.dtype, entry.block
    place: tuple[Any, ...] = (entry.offset // dtype.itemsize, entry.shape, entry.stride, requires_grad, OrderedDict())
    if block.dtype is None or storage_class(dtype) is None:
        return rebuild_tensor_of_dtype, (_Storage(block, None), *place, dtype)
    return rebuild_tensor, (_Storage(block, dtype), *place)


def data_pkl(state: Any, gathering: Gathering) -> bytes:
    """The pickle of `state`.

    Args:
        state: The state dict.
        gathering: Has its tensors, arranged; blocks are added for those inside other objects.

    Raises:
        CheckpointContentError: an object in it cannot be pickled.
    """
    stream = io.BytesIO()
    try:
        _StatePickler(stream, gathering).dump(state)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise CheckpointContentError(
            f"an object in the state dict cannot be pickled: {error}. Save what it consists of instead."
        ) from error
    return stream.getvalue()
