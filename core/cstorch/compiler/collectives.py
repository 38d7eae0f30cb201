"""Turns what a program says of several systems into collectives, the gradients in buckets.

A bucket is sent as soon as its last gradient is there and awaited where the first of its means is used, so that it is
under way while backward goes on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from cstorch._torch_private.collectives import all_gather, all_reduce, wait
from cstorch._torch_private.tracing import mutated_arguments
from cstorch.tracing.across_systems import COMBINE, MEANS, any_of_systems, early_mean_of_systems, gather_systems
from cstorch.tracing.batch_dims import key

aten = torch.ops.aten

GROUP = "cstorch"
"""The name of the process group of the systems."""

BUCKET_BYTES = 8 << 20
"""A bucket that has grown to this size is sent."""


def lower_collectives(graph: fx.GraphModule) -> fx.GraphModule:
    """Replace the operators of `tracing/across_systems.py` by functional collectives. `graph` is changed."""
    found = [n for n in graph.graph.nodes if n.target in COMBINE]
    _send_early(graph.graph, [n for n in found if n.target in MEANS])
    _Buckets(graph.graph).run()
    for node in found:
        if node.target not in MEANS:
            _replace(node)
    graph.recompile()
    return graph


def _send_early(graph: fx.Graph, means: list[fx.Node]) -> None:
    """Move each mean to where its operand is there, unless the operand's memory is written later."""
    written: dict[int, int] = {}
    place = {node: i for i, node in enumerate(graph.nodes)}
    for node, i in place.items():
        if isinstance(node.target, torch._ops.OpOverload):
            for target in mutated_arguments(node.target, node.args, node.kwargs):
                if isinstance(target, fx.Node):
                    written[key(target)] = i
    for node in means:
        operand: Any = node.args[0]
        if written.get(key(operand), -1) <= place[operand] and operand.op == "call_function":
            operand.append(node)


class _Bucket:
    """Means that are one collective.

    Attributes:
        means: The nodes.
        copies: Copies of them into memory that was there before, put off until the bucket is awaited.
        sent: The collective, once it is sent.
    """

    def __init__(self) -> None:
        self.means: list[fx.Node] = []
        self.copies: list[fx.Node] = []
        self.sent: fx.Node | None = None

    @property
    def nbytes(self) -> int:
        return sum(n.meta["val"].numel() * n.meta["val"].itemsize for n in self.means)

    def concerns(self, node: fx.Node, written: set[int]) -> bool:
        """Whether `node` needs the means, or touches memory that they are read from or copied to."""
        used = node.all_input_nodes
        if any(n in self.means or n in self.copies for n in used):
            return True
        later = {key(copy.args[0]) for copy in self.copies}
        if later and any(key(n) in later for n in used if _has_memory(n)):
            return True
        return self.sent is None and any(key(n.args[0]) in written for n in self.means)


class _Buckets:
    """Gathers the means of one graph."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._open = _Bucket()
        self._under_way: list[_Bucket] = []

    def run(self) -> None:
        """Replace all means."""
        for node in list(self._graph.nodes):
            if node.target in MEANS:
                self._add(node)
            elif not self._put_off(node):
                self._before(node)

    def _add(self, node: fx.Node) -> None:
        if any(bucket.concerns(node, set()) for bucket in (self._open, *self._under_way)):
            self._before(node)
        means = self._open.means
        if means and _wire_dtype(_dtype(means[0])) != _wire_dtype(_dtype(node)):
            self._send(node)
        self._open.means.append(node)
        if self._open.nbytes >= BUCKET_BYTES or node.target is early_mean_of_systems:
            self._send(node.next)

    def _put_off(self, node: fx.Node) -> bool:
        if node.target is not aten.copy_.default:
            return False
        for bucket in (self._open, *self._under_way):
            if node.args[1] in bucket.means:
                bucket.copies.append(node)
                return True
        return False

    def _before(self, node: fx.Node) -> None:
        """Send and await what `node` needs."""
        written: set[int] = set()
        if isinstance(node.target, torch._ops.OpOverload):
            targets = mutated_arguments(node.target, node.args, node.kwargs)
            written = {key(t) for t in targets if isinstance(t, fx.Node)}
        end = node.op == "output"
        if self._open.means and (end or self._open.concerns(node, written)):
            self._send(node)
        for bucket in list(self._under_way):
            if end or bucket.concerns(node, written):
                self._await(bucket, node)

    def _send(self, before: fx.Node) -> None:
        bucket, self._open = self._open, _Bucket()
        with self._graph.inserting_before(before):
            flat = [_flat(self._graph, n.args[0]) for n in bucket.means]
            whole = flat[0] if len(flat) == 1 else self._graph.call_function(aten.cat.default, (flat,))
            bucket.sent = self._graph.call_function(all_reduce, (whole, "sum", GROUP))
        self._under_way.append(bucket)

    def _await(self, bucket: _Bucket, before: fx.Node) -> None:
        self._under_way.remove(bucket)
        graph, count = self._graph, bucket.means[0].args[1]
        with graph.inserting_before(before):
            total = graph.call_function(wait, (bucket.sent,))
            mean = graph.call_function(aten.div.Tensor, (total, count))
            start = 0
            for node in bucket.means:
                end = start + _length(node)
                piece = mean
                if len(bucket.means) > 1:
                    piece = graph.call_function(aten.slice.Tensor, (mean, 0, start, end))
                start = end
                result = _unflat(graph, piece, node.meta["val"])
                if piece is not mean and any(user.op == "output" for user in node.users):
                    # a gradient that is kept for the next call has memory of its own, as on one system
                    result = graph.call_function(aten.clone.default, (result,))
                _exchange(node, result)
        for copy in bucket.copies:
            before.prepend(copy)


def _replace(node: fx.Node) -> None:
    """Turn a sum, a truth or a gathering into its collective, where it stands."""
    graph, value = node.graph, node.args[0].meta["val"]  # type: ignore[union-attr]
    with graph.inserting_before(node):
        flat = _flat(graph, node.args[0])
        if node.target is not gather_systems:
            how = "max" if node.target is any_of_systems else "sum"
            total = graph.call_function(wait, (graph.call_function(all_reduce, (flat, how, GROUP)),))
            result = _unflat(graph, total, value)
        else:
            dim: Any = node.args[1]
            count = node.args[2]
            parts = graph.call_function(wait, (graph.call_function(all_gather, (flat, count, GROUP)),))
            order, shape = _memory_order(value)
            result = graph.call_function(aten.view.default, (_cast_back(graph, parts, value), [count, *shape]))
            inverse = [order.index(d) + 1 for d in range(value.dim())]
            result = graph.call_function(aten.permute.default, (result, [*inverse[:dim], 0, *inverse[dim:]]))
            result = graph.call_function(aten.clone.default, (result,), {"memory_format": torch.contiguous_format})
            result = graph.call_function(aten.view.default, (result, list(node.meta["val"].shape)))
    _exchange(node, result)


def _exchange(node: fx.Node, result: fx.Node) -> None:
    result.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)


def _dtype(node: fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def _has_memory(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _length(node: fx.Node) -> int:
    value = node.meta["val"]
    return int(value.numel()) * (2 if value.is_complex() else 1)


def _wire_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of numbers that systems exchange: gloo knows few, and halves are better added as floats."""
    if dtype is torch.bool:
        return torch.uint8
    if dtype.is_complex:
        return torch.float64 if dtype is torch.complex128 else torch.float32
    if dtype.is_floating_point:
        return torch.float64 if dtype is torch.float64 else torch.float32
    return torch.int64


def _memory_order(value: torch.Tensor) -> tuple[list[int], list[int]]:
    """Dimensions from the slowest to the fastest in memory, and their sizes."""
    order = sorted(range(value.dim()), key=lambda d: (-int(value.stride()[d]), d))
    shape = [value.shape[d] for d in order]
    dense = torch.empty(shape, device="meta").stride()
    if tuple(value.stride(d) for d in order) != dense:  # expanded, or with gaps: as PyTorch copies it
        order, shape = list(range(value.dim())), list(value.shape)
    return order, shape


def _flat(graph: fx.Graph, node: Any) -> fx.Node:
    """`node` as numbers in a row, in the order of its memory."""
    value = node.meta["val"]
    order, _ = _memory_order(value)
    if order != sorted(order):
        node = graph.call_function(aten.permute.default, (node, order))
    if value.is_complex():
        node = graph.call_function(aten.view_as_real.default, (node,))
        value = torch.view_as_real(value)
    node = graph.call_function(aten.reshape.default, (node, [value.numel()]))
    wire = _wire_dtype(value.dtype)
    if value.dtype != wire:
        node = graph.call_function(aten._to_copy.default, (node,), {"dtype": wire})
    return node  # type: ignore[no-any-return]


def _cast_back(graph: fx.Graph, node: fx.Node, value: torch.Tensor) -> fx.Node:
    real = value.real.dtype if value.is_complex() else value.dtype
    if _wire_dtype(real) != real:
        node = graph.call_function(aten._to_copy.default, (node,), {"dtype": real})
    if value.is_complex():
        pairs = graph.call_function(aten.view.default, (node, [-1, 2]))
        node = graph.call_function(aten.view_as_complex.default, (pairs,))
    return node


def _unflat(graph: fx.Graph, node: fx.Node, value: torch.Tensor) -> fx.Node:
    """The inverse of `_flat`, with the strides of `value`."""
    order, shape = _memory_order(value)
    node = graph.call_function(aten.view.default, (_cast_back(graph, node, value), shape))
    if order != sorted(order):
        inverse = [order.index(d) for d in range(len(order))]
        node = graph.call_function(aten.permute.default, (node, inverse))
    return node
