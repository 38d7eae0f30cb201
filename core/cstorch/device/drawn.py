"""Random numbers of a pending tensor piece by piece: to look at a large initialiser without having it whole.

PyTorch draws into contiguous memory in groups of 16 elements, so pieces of whole groups, drawn one after another from
the state that the whole starts from, are the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from cstorch.device.lazy import Pending, plainly

aten = torch.ops.aten

_GROUP = 16
_DRAWS = frozenset({aten.uniform_.default, aten.normal_.default})  # large ones of others are drawn at once
_DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})


def drawn(pending: Pending, nbytes: int) -> Iterator[torch.Tensor] | None:
    """The elements of a tensor that was just drawn, in order, as cpu tensors of about `nbytes` bytes.

    Args:
        pending: The tensor.
        nbytes: Of a piece. Each piece is valid until the next one.

    Returns:
        None where the contents are something else than one draw into the whole of a contiguous tensor.
    """
    operation = pending.memory.last
    if operation is None or operation.done or pending.memory.storage is not None:
        return None
    if operation.func not in _DRAWS or operation.before or operation.state is None:
        return None
    meta = pending.meta
    if not (pending.is_whole and meta.is_contiguous() and operation.draws_into(meta) and meta.dtype in _DTYPES):
        return None
    return _pieces(pending, operation.state, max(nbytes // meta.dtype.itemsize // _GROUP, 1) * _GROUP)


def _pieces(pending: Pending, state: torch.Tensor, count: int) -> Iterator[torch.Tensor]:
    operation = pending.memory.last
    assert operation is not None
    generator = torch.Generator()
    generator.set_state(state)
    left = pending.meta.numel()
    memory = torch.empty(min(count + _GROUP, left), dtype=pending.meta.dtype)
    while left:
        size = left if left < count + _GROUP else count  # a tail of less than a group would be drawn otherwise
        piece = memory[:size]
        with plainly():
            operation.draw(piece, generator)
        yield piece
        left -= size
