"""Says a functional graph in operators that do not ask how large the batch is, as far as there are such.

Means over a batch are sums divided by a count, constants are told by their shape alone, and random numbers are drawn
for the whole batch: a micro-batch takes its part of them, so that they are those of a program without micro-batches.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from cstorch.compiler.micro_batch.labels import values_of

aten = torch.ops.aten

_FILLS: dict[str, int | float] = {"zeros_like": 0, "ones_like": 1, "empty_like": 0, "new_zeros": 0, "new_ones": 1,
                                  "new_empty": 0, "new_empty_strided": 0}  # fmt: skip
_VALUED_FILLS = {"full_like": 1, "new_full": 2}
"""Operators that take a tensor for its shape and dtype, and the position of the number that they fill with."""

_DRAWS = frozenset({
    "rand_like", "randn_like", "randint_like", "uniform", "normal_functional", "exponential", "cauchy", "geometric",
    "log_normal", "random",
})  # fmt: skip
"""Random numbers that depend on the shape of their first argument, not on its values."""

_MEAN, _SUM = 1, 2

OF_TARGETS = "of_targets"
"""In the `meta` of nodes that weigh targets: they are computed for the whole batch at once, from weights too."""
_LOSSES = {
    name: (position, source)
    for kind, at in (("mse", 2), ("smooth_l1", 2), ("huber", 2), ("soft_margin", 2), ("binary_cross_entropy", 3))
    for name, position, source in (
        (f"{kind}_loss" if kind != "binary_cross_entropy" else kind, at, 0),
        (f"{kind}_loss_backward" if kind != "binary_cross_entropy" else f"{kind}_backward", at + 1, 1),
    )
}
"""Losses and what computes their gradients: the positions of `reduction` and of the prediction."""


class _Writer:
    """Adds nodes before `node`, as from the same line of the user's program."""

    def __init__(self, node: fx.Node, **meta: Any) -> None:
        self._node, self._meta = node, {**node.meta, **meta}
        self._mode = next(value.fake_mode for value in values_of(node))  # type: ignore[attr-defined]

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        graph = self._node.graph
        with graph.inserting_before(self._node):
            made = graph.call_function(target, args, kwargs)
        given, named = fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        with self._mode, torch.no_grad():
            made.meta.update(self._meta, val=target(*given, **named))
        return made

    def full(self, like: torch.Tensor, value: Any, shape: Any = None) -> fx.Node:
        """A constant of the shape and dtype of `like`."""
        shape = list(like.shape if shape is None else shape)
        return self(aten.full.default, shape, value, dtype=like.dtype, device=torch.device("cpu"))

    def shape_of(self, like: torch.Tensor) -> fx.Node:
        """A tensor of the shape, strides and dtype of `like`, whose values do not matter."""
        if like.is_contiguous():  # without memory of its own
            return self(aten.expand.default, self.full(like, 0, []), list(like.shape))
        return self(
            aten.empty_strided.default, list(like.shape), list(like.stride()), dtype=like.dtype,
            device=torch.device("cpu"),
        )  # fmt: skip


def say_plainly(graph: fx.Graph) -> None:
    """Rewrite `graph`, which is functional and whose nodes have their fake tensors in `meta["val"]`."""
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = node.target.overloadpacket.__name__
        if name in _FILLS or name in _VALUED_FILLS:
            _fill(node, _FILLS[name] if name in _FILLS else node.args[_VALUED_FILLS[name]])
        elif name in _DRAWS or node.target is aten.bernoulli.p:
            node.update_arg(0, _Writer(node).shape_of(node.args[0].meta["val"]))
        elif name == "native_dropout" and node.args[2] is not False:
            _drop(node)
        elif name in _LOSSES:
            _sum_loss(node, *_LOSSES[name])
        elif name in ("nll_loss_forward", "nll_loss2d_forward") and node.args[3] == _MEAN:
            _count_targets(node)
        elif name in ("nll_loss_backward", "nll_loss2d_backward") and node.args[4] != _MEAN:
            node.update_arg(6, _Writer(node).full(node.args[6].meta["val"], 1))  # it is not looked at
    graph.eliminate_dead_code()


def _replace(node: fx.Node, new: fx.Node) -> None:
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)


def _fill(node: fx.Node, value: Any) -> None:
    like = node.meta["val"]
    if like.is_contiguous() and not isinstance(value, fx.Node):
        _replace(node, _Writer(node).full(like, value))


def _drop(node: fx.Node) -> None:
    write, (source, probability) = _Writer(node), node.args[:2]
    value: Any = source.meta["val"]  # type: ignore[union-attr]
    drawn = write(aten.native_dropout.default, write.shape_of(value), probability, True)
    mask = write(operator.getitem, drawn, 1)
    scale = 0.0 if probability == 1 else 1 / (1 - probability)  # type: ignore[operator]
    kept = write(aten.mul.Tensor, write(aten.mul.Tensor, source, mask), scale)
    for user in list(node.users):
        _replace(user, (kept, mask)[user.args[1]])  # type: ignore[index]
    node.graph.erase_node(node)


def _sum_loss(node: fx.Node, position: int, source: int) -> None:
    """The mean loss is the sum divided by the count of elements; so are gradients."""
    if len(node.args) <= position:  # left out
        node.args = (*node.args, *([None] * (position - len(node.args))), _MEAN)
    if node.args[position] != _MEAN:
        return
    write, count = _Writer(node), math.prod(node.args[source].meta["val"].shape)  # type: ignore[union-attr]
    args = list(node.args)
    args[position] = _SUM
    if source == 0:
        _replace(node, write(aten.div.Tensor, write(node.target, *args, **node.kwargs), count))
    else:
        args[0] = write(aten.div.Tensor, args[0], count)
        _replace(node, write(node.target, *args, **node.kwargs))


def _count_targets(node: fx.Node) -> None:
    """The mean loss is the sum divided by the weight of all targets that count, which the targets alone say."""
    write = _Writer(node, **{OF_TARGETS: True})
    source, target, weight, _, ignored = node.args
    dtype = source.meta["val"].dtype  # type: ignore[union-attr]
    counts = write(aten.ne.Scalar, target, ignored)
    weights = write(aten._to_copy.default, counts, dtype=dtype)
    if weight is not None:
        shape = list(target.meta["val"].shape)  # type: ignore[union-attr]
        nothing = write(aten.full.default, [], 0, dtype=torch.int64, device=torch.device("cpu"))
        known = write(aten.where.self, counts, target, nothing)
        flat = write(aten.reshape.default, known, [math.prod(shape)])
        each = write(aten.index_select.default, weight, 0, flat)
        weights = write(aten.mul.Tensor, write(aten.view.default, each, shape), weights)
    total = write(aten.sum.default, weights)
    write = _Writer(node)
    name: Any = node.target
    both = write(name, source, target, weight, _SUM, ignored)
    loss = write(aten.div.Tensor, write(operator.getitem, both, 0), total)
    for before in [user for user in node.users if user.args[1] == 1]:
        for user in list(before.users):
            _sum_gradient(user, before, total)
    for user in list(node.users):
        _replace(user, (loss, total)[user.args[1]])  # type: ignore[index]
    node.graph.erase_node(node)


def _sum_gradient(node: fx.Node, count: fx.Node, total: fx.Node) -> None:
    """What computes the gradient of a mean loss computes that of the sum, of a smaller gradient."""
    if len(node.args) == 7 and node.args[6] is count and node.args[4] == _MEAN:
        grad, source, target, weight, _, ignored, _ = node.args
        write = _Writer(node)
        small = write(aten.div.Tensor, grad, total)
        name: Any = node.target
        _replace(node, write(name, small, source, target, weight, _SUM, ignored, total))
