"""Rules of operators that change shapes or pick elements: where the batch lies afterwards, and the sizes they name."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from cstorch.compiler.micro_batch.labels import Along, Call, Label, MixesSamplesError
from cstorch.compiler.micro_batch.rules import rule, with_rows


def _source(call: Call) -> tuple[fx.Node, int, torch.Size]:
    """The first argument, which has the batch, its dimension there, and the shape."""
    source = call.args[0]
    dim = call.dim(source)
    if dim is None:
        raise MixesSamplesError
    call.need(source, dim)
    return source, dim, source.meta["val"].shape


def _sized(call: Call, sizes: Any, dim: int) -> list[Any]:
    """`sizes` with that of `dim` as a micro-batch has it."""
    return [call.part(size) if i == dim and size != -1 else size for i, size in enumerate(sizes)]


@with_rows
@rule("view", "_unsafe_view", "reshape")
def view(call: Call) -> Label:
    """The batch lies within the dimension before which the elements of fewer rows are than before the batch."""
    _, dim, before = _source(call)
    rows = math.prod(before[:dim]) * call.rows
    for at, size in enumerate(after := call.out.shape):
        outside = math.prod(after[:at])
        if rows % outside == 0 and outside * size > rows:
            if size % (rows // outside * call.count):
                break
            call.target, call.args[1] = torch.ops.aten.reshape.default, _sized(call, after, at)
            return Along(at, rows // outside)
    raise MixesSamplesError


@with_rows
@rule("expand")
def _expand(call: Call) -> Label:
    _, dim, before = _source(call)
    at = dim + call.out.dim() - len(before)
    call.args[1] = _sized(call, call.out.shape, at)
    return Along(at)


@rule("repeat")
def _repeat(call: Call) -> Label:
    _, dim, before = _source(call)
    at = dim + call.out.dim() - len(before)
    if call.args[1][at] != 1:
        raise MixesSamplesError
    return Along(at)


@with_rows
@rule("permute", "transpose", "t", "movedim", "numpy_T")
def _permuted(call: Call) -> Label:
    _, dim, before = _source(call)
    probe = torch.empty([i + 2 for i in range(len(before))], device="meta")
    target: Any = call.node.target
    return Along(list(target(probe, *call.args[1:]).shape).index(dim + 2))


@with_rows
@rule("unsqueeze")
def _unsqueeze(call: Call) -> Label:
    _, dim, _ = _source(call)
    return Along(dim + (call.args[1] % call.out.dim() <= dim))


@with_rows
@rule("squeeze")
def _squeeze(call: Call) -> Label:
    _, dim, before = _source(call)
    given = call.arg(1, range(len(before)))
    dims = {d % len(before) for d in ([given] if isinstance(given, int) else given)}
    gone = [d for d in dims if before[d] == 1]
    at = dim - sum(d < dim for d in gone)
    shape = [size for i, size in enumerate(before) if i not in gone]
    # The dimension of the batch must stay where a micro-batch is one sample, so the shape that is left is said.
    call.target, call.args = torch.ops.aten.view.default, [call.args[0], _sized(call, shape, at)]
    return Along(at)


@with_rows
@rule("select")
def _select(call: Call) -> Label:
    _, dim, before = _source(call)
    chosen = call.args[1] % len(before)
    if chosen == dim:
        raise MixesSamplesError
    return Along(dim - (chosen < dim))


@with_rows
@rule("slice")
def _slice(call: Call) -> Label:
    source, dim, before = _source(call)
    if call.arg(1, 0) % len(before) == dim:
        if call.out.shape != before or call.arg(4, 1) != 1:
            raise MixesSamplesError
        call.args = [source, dim]
    return Along(dim)


@rule("index_select")
def _index_select(call: Call) -> Label:
    source, at, index = call.args
    at %= max(call.out.dim(), 1)
    dim = call.dim(source)
    if dim is None:
        call.whole(source)
        call.need(index, 0)
        return Along(at)
    if at == dim:
        raise MixesSamplesError
    call.need(source, dim)
    call.whole(index)
    return Along(dim)


@with_rows
@rule("slice_backward", "select_backward")
def _slice_backward(call: Call) -> Label:
    _, sizes, at = call.args[:3]
    is_select = call.name.startswith("select")
    at %= len(sizes)
    dim = _source(call)[1]
    if is_select:
        dim += at <= dim
    if dim == at:
        raise MixesSamplesError
    call.args[1] = _sized(call, sizes, dim)
    return Along(dim)


@rule("slice_scatter", "select_scatter")
def _scattered(call: Call) -> Label:
    base, source = call.args[:2]
    is_select = call.name.startswith("select")
    rank = call.out.dim()
    at = call.arg(2, 0) % rank
    dims = {call.dim(base)} - {None}
    of_source = call.dim(source)
    if of_source is not None:
        dims.add(of_source + (is_select and at <= of_source))
    if len(dims) != 1 or at in dims:
        raise MixesSamplesError
    (dim,) = dims
    assert dim is not None
    call.need(base, dim)
    call.need(source, dim - (is_select and at < dim))
    return Along(dim)


@with_rows
@rule("split", "split_with_sizes", "unbind", "chunk")
def _split(call: Call) -> tuple[Label, ...]:
    _, dim, before = _source(call)
    is_unbind = call.name == "unbind"
    at = call.arg(1 if is_unbind else 2, 0) % len(before)
    if at == dim:
        raise MixesSamplesError
    return (Along(dim - (is_unbind and at < dim)),) * len(call.node.meta["val"])


@with_rows
@rule("cat", "stack")
def _cat(call: Call) -> Label:
    parts = [node for node in call.args[0] if node.meta["val"].shape != (0,)]
    is_stack = call.name == "stack"
    at = call.arg(1, 0) % call.out.dim()
    dims = {call.dim(node) for node in parts} - {None}
    if len(dims) != 1 or (not is_stack and at in dims):
        raise MixesSamplesError
    (dim,) = dims
    assert dim is not None
    for node in parts:
        call.need(node, dim)
    return Along(dim + (is_stack and at <= dim))


@rule("constant_pad_nd")
def _pad(call: Call) -> Label:
    _, dim, before = _source(call)
    pads = call.args[1]
    at = 2 * (len(before) - 1 - dim)
    if any(pads[at : at + 2]):
        raise MixesSamplesError
    return Along(dim)


@rule("gather", "scatter_add", "scatter")
def _gather(call: Call) -> Label:
    dims = {call.dim(node) for node in call.tensors} - {None}
    at = call.args[1] % max(call.out.dim(), 1)
    if len(dims) != 1 or at in dims:
        raise MixesSamplesError
    (dim,) = dims
    assert dim is not None
    if len({call.size(node, dim) for node in call.tensors}) != 1:  # some rows are left out
        raise MixesSamplesError
    for node in call.tensors:
        call.need(node, dim)
    return Along(dim)


@rule("index", "_unsafe_index")
def _index(call: Call) -> Label:
    source, indices = call.args[:2]
    given = [i for i, index in enumerate(indices) if index is not None]
    first, width = given[0], max(indices[i].meta["val"].dim() for i in given)
    if given != list(range(first, first + len(given))):
        raise MixesSamplesError
    chosen = [indices[i] for i in given]
    if any(node.meta["val"].dtype == torch.bool for node in chosen):
        raise MixesSamplesError
    dim = call.dim(source)
    if dim is not None and dim not in given:
        call.need(source, dim)
        for node in chosen:
            call.whole(node)
        return Along(dim if dim < first else dim - len(given) + width)
    dims = {own + width - n.meta["val"].dim() for n in chosen if (own := call.dim(n)) is not None}
    if dim is not None or len(dims) != 1:
        raise MixesSamplesError
    (at,) = dims
    for node in chosen:
        own = at - width + node.meta["val"].dim()
        if own >= 0 and node.meta["val"].shape[own] != 1:
            call.need(node, own)
    return Along(first + at)
