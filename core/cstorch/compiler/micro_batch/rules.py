"""Rules of single operators: elementwise ones, reductions, matrix products, and the table that holds those of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from cstorch.compiler.micro_batch.labels import MEAN, SUM, Along, Call, Label, MixesSamplesError

aten = torch.ops.aten

Rule = Callable[[Call], Any]
"""Says what an operator takes for a micro-batch, and returns the label of its result, or a tuple of labels."""

RULES: dict[str, Rule] = {}
"""By the operator's name without namespace and overload."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """The decorator of the rule of these operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


WITH_ROWS: set[Rule] = set()
"""Rules that are right for any `Along.rows`."""


def with_rows(function: Rule) -> Rule:
    """The decorator of rules that only say where the dimension of the batch goes, whatever lies within it."""
    WITH_ROWS.add(function)
    return function


def rule_of(node: fx.Node) -> Rule:
    """The rule of the operator of `node`.

    Raises:
        MixesSamplesError: there is none.
    """
    target: Any = node.target
    if (name := target.overloadpacket.__name__) in RULES:
        return RULES[name]
    if torch.Tag.pointwise in target.tags and torch.Tag.nondeterministic_seeded not in target.tags:
        return elementwise
    raise MixesSamplesError


@with_rows
@rule("_to_copy", "clone", "alias", "detach", "copy", "lift_fresh_copy", "native_dropout_backward")
def elementwise(call: Call) -> Label:
    """Every element of the result comes from those at its place; smaller arguments are broadcast from the right."""
    dims = {own + call.out.dim() - len(_shape(node)) for node in call.tensors if (own := call.dim(node)) is not None}
    dim, *others = dims
    if others:
        raise MixesSamplesError
    for node in call.tensors:
        own = dim - call.out.dim() + len(_shape(node))
        if own >= 0 and _shape(node)[own] != 1:
            call.need(node, own)
    return Along(dim)


def same_place(call: Call, *mixed: int) -> Label:
    """The result and all arguments have one shape but for the `mixed` dimensions, along which samples may not lie."""
    (dim, *others) = {d for node in call.tensors if (d := call.dim(node)) is not None}
    if others or dim in {d % max(call.out.dim(), 1) for d in mixed}:
        raise MixesSamplesError
    for node in call.tensors:
        call.need(node, dim)
    return Along(dim)


@with_rows
@rule("_softmax", "_log_softmax", "_safe_softmax", "cumsum", "cumprod", "logcumsumexp", "glu")
def _along_dim(call: Call) -> Label:
    return same_place(call, call.args[1])


@with_rows
@rule("_softmax_backward_data", "_log_softmax_backward_data", "glu_backward")
def _along_dim_backward(call: Call) -> Label:
    return same_place(call, call.args[2])


@rule("flip")
def _flip(call: Call) -> Label:
    return same_place(call, *call.args[1])


@rule("roll")
def _roll(call: Call) -> Label:
    return same_place(call, *(call.arg(2) or range(call.out.dim())))


@rule("tril", "triu")
def _triangle(call: Call) -> Label:
    return same_place(call, -1, -2)


@rule("sort", "topk")
def _sorted(call: Call) -> tuple[Label, Label]:
    label = _reduction(call, None, keeps=True)
    return label, label


# -- reductions ----------------------------------------------------------------------------------------------


def _reduction(call: Call, over_batch: Label | None, keeps: bool | None = None) -> Label:
    """Of the first argument, over the dimensions `dim`.

    Args:
        call: The call.
        over_batch: The label where the batch is among them; None: that mixes samples.
        keeps: Whether the dimensions stay; by default the argument `keepdim` says so.
    """
    source, dims = call.args[0], call.named("dim")
    rank, dim = max(len(_shape(source)), 1), call.dim(source)
    if dim is None:
        raise MixesSamplesError
    call.need(source, dim)
    every = dims is None or dims == []
    reduced = set(range(rank)) if every else {d % rank for d in ([dims] if isinstance(dims, int) else dims)}
    if dim in reduced:
        if over_batch is None:
            raise MixesSamplesError
        return over_batch
    is_kept = call.named("keepdim") if keeps is None else keeps
    return Along(dim if is_kept else dim - sum(d < dim for d in reduced))


@with_rows
@rule("sum", "nansum", "count_nonzero")
def _sum(call: Call) -> Label:
    return _reduction(call, SUM)


@with_rows
@rule("mean")
def _mean(call: Call) -> Label:
    return _reduction(call, MEAN)


@rule("amax", "amin", "any", "all", "argmax", "argmin", "logsumexp", "var", "std", "prod", "linalg_vector_norm", "norm")
def _other_reduction(call: Call) -> Label:
    return _reduction(call, None)


@rule("max", "min", "median", "var_mean", "std_mean", "aminmax", "mode", "kthvalue")
def _pair(call: Call) -> Any:
    if call.name in ("max", "min") and isinstance(call.arg(1), fx.Node):
        return elementwise(call)
    label = _reduction(call, None)
    return label if isinstance(call.node.meta["val"], torch.Tensor) else (label, label)


# -- matrix products -----------------------------------------------------------------------------------------


def _product(call: Call, left: fx.Node, right: fx.Node, stacked: int) -> Label:
    """Of matrices, `stacked` so many dimensions deep."""
    rows, across, down, columns = stacked, stacked + 1, stacked, stacked + 1
    of_left, of_right = call.dim(left), call.dim(right)
    if stacked and 0 in (of_left, of_right):
        call.need(left, 0)
        call.need(right, 0)
        return Along(0)
    if across == of_left or (down == of_right and len(_shape(right)) > stacked):
        call.need(left, across)
        call.need(right, down)
        return SUM
    if rows == of_left:
        call.need(left, rows)
        call.whole(right)
        return Along(rows)
    if columns == of_right:
        call.whole(left)
        call.need(right, columns)
        return Along(columns)
    raise MixesSamplesError


@with_rows
@rule("mm", "mv", "bmm")
def _mm(call: Call) -> Label:
    return _product(call, call.args[0], call.args[1], int(len(_shape(call.args[0])) == 3))


@rule("dot", "vdot")
def _dot(call: Call) -> Label:
    call.need(call.args[0], 0)
    call.need(call.args[1], 0)
    return SUM


@with_rows
@rule("addmm", "addmv", "baddbmm")
def _addmm(call: Call) -> Label:
    bias, left, right = call.args[:3]
    if call.dim(left) is None and call.dim(right) is None:
        raise MixesSamplesError
    label = _product(call, left, right, int(len(_shape(left)) == 3))
    if not isinstance(label, Along):
        raise MixesSamplesError
    own = label.dim - call.out.dim() + len(_shape(bias))
    if own >= 0 and _shape(bias)[own] != 1:
        call.need(bias, own)
    return label


def _shape(node: fx.Node) -> torch.Size:
    shape: torch.Size = node.meta["val"].shape
    return shape
