"""The graph of one micro-batch: what a labelled graph computes for a part of the batch."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from cstorch._torch_private.serialization import storage_id
from cstorch.compiler.micro_batch.analysis import Analysis
from cstorch.compiler.micro_batch.labels import Along, Partial, values_of

aten = torch.ops.aten

_FACTORIES = frozenset({aten.full.default, aten.zeros.default, aten.ones.default})


class Body:
    """The graph of one micro-batch. Its inputs: the number of the micro-batch, what is carried, and the rest.

    Args:
        analysis: The labelled graph.
        mode: The mode of its fake tensors.
    """

    def __init__(self, analysis: Analysis, mode: Any) -> None:
        self._of, self.mode, self.count = analysis, mode, analysis.count
        self.graph = fx.Graph()
        self._last: fx.Node | None = None
        with mode:
            self.number = self._placeholder("number", torch.empty((), dtype=torch.int64))
        self.outer: list[fx.Node] = []  # whole values of the graph around that come in
        self._wholes: dict[fx.Node, fx.Node] = {}
        self._made: dict[fx.Node, fx.Node] = {}
        self._parts: dict[tuple[fx.Node, Along], fx.Node] = {}

    def _placeholder(self, name: str, value: torch.Tensor) -> fx.Node:
        where = self.graph.inserting_before(None) if self._last is None else self.graph.inserting_after(self._last)
        with where:
            node = self._last = self.graph.placeholder(name)
        node.meta["val"] = value
        return node

    def carried(self, name: str, value: torch.Tensor) -> fx.Node:
        """A value that goes from micro-batch to micro-batch."""
        return self._placeholder(name, value)

    def add(self, like: fx.Node, target: Any, args: Any, kwargs: dict[str, Any] | None = None) -> fx.Node:
        """A node from the same line of the user's program as `like`."""
        node = self.graph.call_function(target, tuple(args), kwargs or {})
        given, named = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        with self.mode, torch.no_grad():
            node.meta.update(like.meta, val=target(*given, **named))
        return node

    def whole(self, node: fx.Node) -> fx.Node:
        """The whole value of `node`, from outside."""
        if node not in self._wholes:
            if _is_view(node):  # no two inputs of a loop may share memory
                args, kwargs = fx.map_arg((node.args, node.kwargs), self.whole)
                self._wholes[node] = self.add(node, node.target, args, kwargs)
            else:
                self.outer.append(node)
                self._wholes[node] = self._placeholder(f"outer_{len(self.outer)}", node.meta["val"])
        return self._wholes[node]

    def part(self, node: fx.Node, place: Along) -> fx.Node:
        """The part of a whole value that belongs to the micro-batch."""
        if (node, place) not in self._parts:
            self._parts[node, place] = self._part(node, place)
        return self._parts[node, place]

    def _part(self, node: fx.Node, place: Along) -> fx.Node:
        shape, dim = list(node.meta["val"].shape), place.dim
        shape_there = smaller(shape, dim, self.count)
        if node.target in _FACTORIES:
            return self.add(node, node.target, (shape_there, *node.args[1:]), node.kwargs)
        if node.target is aten.expand.default:
            source: Any = node.args[0]
            own = dim - len(shape) + source.meta["val"].dim()
            if own < 0 or source.meta["val"].shape[own] == 1:
                return self.add(node, node.target, (self.whole(source), shape_there))
        if _is_map(node):
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: self.part(n, place))
            return self.add(node, node.target, args, kwargs)
        inner = shape[dim] // (place.rows * self.count)
        split = [*shape[:dim], place.rows, self.count, inner, *shape[dim + 1 :]]
        each = self.add(node, aten.view.default, (self.whole(node), split))
        index = self.add(node, aten.view.default, (self.number, [1]))
        chosen = self.add(node, aten.index_select.default, (each, dim + 1, index))
        return self.add(node, aten.view.default, (chosen, shape_there))

    def value(self, node: fx.Node) -> fx.Node:
        """The value of `node`, along the batch or a sum over it, for the micro-batch."""
        waiting = [node]
        while waiting:
            at = waiting[-1]
            missing = [n for n in self._inside(at) if n not in self._made]
            if at in self._made or not missing:
                waiting.pop()
                if at not in self._made:
                    self._made[at] = self._emit(at)
            waiting += missing
        return self._made[node]

    def _inside(self, node: fx.Node) -> list[fx.Node]:
        """The arguments of `node` that are computed within the micro-batch."""
        if node.op == "placeholder":
            return []
        if node.target is operator.getitem:
            return [node.args[0]]  # type: ignore[list-item]
        needs = self._of.plans[node].needs
        return [n for n in node.all_input_nodes if self._is_inside(n, needs[n])]

    def _is_inside(self, node: fx.Node, place: Along | None) -> bool:
        label = self._of.labels[node]
        if isinstance(label, Along):
            return place == label
        return isinstance(label, (Partial, tuple))

    def _emit(self, node: fx.Node) -> fx.Node:
        if node.op == "placeholder":
            return self.part(node, Along(0))
        if node.target is operator.getitem:
            source = self._made[node.args[0]]  # type: ignore[index]
            return self.add(node, operator.getitem, (source, node.args[1]))
        plan = self._of.plans[node]

        def taken(given: fx.Node) -> fx.Node:
            place = plan.needs[given]
            if self._is_inside(given, place):
                return self._made[given]
            return self.whole(given) if place is None else self.part(given, place)

        args, kwargs = fx.map_arg((tuple(plan.args), plan.kwargs), taken)
        made = self.add(node, plan.target, args, kwargs)
        self._check(node, made)
        return made

    def _check(self, node: fx.Node, made: fx.Node) -> None:
        """Hold what a rule has said against the shapes that come out."""
        labels = self._of.labels[node]
        several = labels if isinstance(labels, tuple) else (labels,)
        for label, whole, part in zip(several, _listed(node), _listed(made), strict=True):
            if isinstance(whole, torch.Tensor):
                is_along = isinstance(label, Along)
                expected = smaller(whole.shape, label.dim, self.count) if is_along else list(whole.shape)
                assert list(part.shape) == expected, f"{node.format_node()} is {list(part.shape)}, not {expected}"


def _listed(node: fx.Node) -> Sequence[Any]:
    """The results of a node."""
    value = node.meta["val"]
    return value if isinstance(value, (tuple, list)) else (value,)


def _is_map(node: fx.Node) -> bool:
    """Whether `node` computes every element from that at its place in one other value."""
    tags = getattr(node.target, "tags", ())
    sources = node.all_input_nodes
    is_pointwise = torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags
    return is_pointwise and len(sources) == 1 and sources[0].meta["val"].shape == node.meta["val"].shape


def _is_view(node: fx.Node) -> bool:
    """Whether what `node` makes lies in the memory of its first argument."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return _is_view(node.args[0])  # type: ignore[arg-type]
    memory = {storage_id(value) for source in node.all_input_nodes for value in values_of(source)}
    return any(storage_id(value) in memory for value in values_of(node))


def smaller(shape: Sequence[int], dim: int, count: int) -> list[int]:
    """The shape of a micro-batch's part of a value of `shape`."""
    return [size // count if i == dim else size for i, size in enumerate(shape)]
