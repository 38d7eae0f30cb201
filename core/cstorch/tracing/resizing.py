"""Operators that give a tensor another size in place, for tensors that the step itself has made.

The tensor's handle then stands for a new value of the new shape, which begins with the old contents, as in eager.
What the memory had beyond them is zero in a program where eager leaves it undefined.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from cstorch.device import CsxTensor
from cstorch.errors import TraceError
from cstorch.where import user_line

aten = torch.ops.aten

_RESIZES = frozenset({aten.resize_.default, aten.resize_as_.default})


def resized(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The tensor that `func` gave another size, or NotImplemented where it is no such operator or keeps the size.

    Raises:
        TraceError: The tensor is state or an argument of the step, or others share the memory that must move.
    """
    if func in _RESIZES:
        size = tuple(args[1] if func is aten.resize_.default else args[1].shape)
        if size == tuple(args[0].shape):
            return args[0]
        handle = _own(recorder, func, args[0])
        if kwargs.get("memory_format") not in (None, torch.contiguous_format):
            raise _refusal(func, "to another memory format")
        return _follow(handle, _contents(recorder, func, handle, size))
    if func is aten.addbmm_.default and tuple(args[0].shape) != (args[1].shape[1], args[2].shape[2]):
        made = recorder.record(aten.addbmm.default, args, kwargs)  # a single number grows to the size of the product
        return _follow(_own(recorder, func, args[0]), made)
    return NotImplemented


def _refusal(func: Any, why: str) -> TraceError:
    return TraceError(
        f"{func} at {user_line()} changes the size of a tensor in place {why}, which a program cannot follow. "
        "Make a new tensor of that size, for example with reshape() or new_zeros()."
    )


def _own(recorder: Any, func: Any, tensor: torch.Tensor) -> CsxTensor:
    handle: CsxTensor = recorder._handle_of(tensor)
    assert handle._fake is not None
    if handle is not tensor or recorder._by_storage.get(handle._fake.untyped_storage()._cdata):
        raise _refusal(func, "that was made before the step")
    return handle


def _contents(recorder: Any, func: Any, handle: CsxTensor, size: tuple[int, ...]) -> CsxTensor:
    fake = handle._fake
    assert fake is not None
    memory, offset = fake.untyped_storage(), fake.storage_offset()
    available, wanted = memory.nbytes() // fake.itemsize - offset, math.prod(size)
    flat = recorder.record(aten.as_strided.default, (handle, (min(wanted, available),), (1,), offset), {})
    if wanted > available:
        values = [node.meta.get("val") for node in recorder.graph.nodes if node is not flat._node]
        for value in values:
            if (
                isinstance(value, torch.Tensor)
                and value is not fake
                and value.untyped_storage()._cdata == memory._cdata
            ):
                raise _refusal(func, "while views share its memory")
        missing = {"dtype": fake.dtype, "device": torch.device("cpu")}
        tail = recorder.record(aten.zeros.default, ((wanted - available,),), missing)
        flat = recorder.record(aten.cat.default, ([flat, tail],), {})
    return recorder.record(aten.view.default, (flat, size), {})  # type: ignore[no-any-return]


def _follow(handle: CsxTensor, made: CsxTensor) -> CsxTensor:
    """Make `handle` stand for the value of `made`, with its shape."""
    assert made._fake is not None
    with torch._C._DisableTorchDispatch():
        torch.Tensor.data.__set__(handle, made)  # type: ignore[attr-defined]
    handle._fake, handle._node = made._fake, made._node
    return handle
