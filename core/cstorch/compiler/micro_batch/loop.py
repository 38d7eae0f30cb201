"""Makes a program one that runs over micro-batches: a loop within its graph, between what is computed once."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from cstorch._torch_private.serialization import storage_id
from cstorch.compiler.loops import LOOP
from cstorch.compiler.micro_batch.analysis import SAME, Analysis
from cstorch.compiler.micro_batch.labels import LATER, WHOLE, Along, Partial, values_of

aten = torch.ops.aten

_FACTORIES = {aten.full.default: 0, aten.zeros.default: 0, aten.ones.default: 0}


class _Body:
    """The graph of one micro-batch. Its inputs: the number of the micro-batch, what is carried, and the rest.

    Args:
        analysis: The labelled graph.
        mode: The mode of its fake tensors.
    """

    def __init__(self, analysis: Analysis, mode: Any) -> None:
        self._of, self._mode, self._count = analysis, mode, analysis.count
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
        with self._mode, torch.no_grad():
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
        smaller = _smaller(shape, dim, self._count)
        if node.target in _FACTORIES:
            return self.add(node, node.target, (smaller, *node.args[1:]), node.kwargs)
        if node.target is aten.expand.default:
            source: Any = node.args[0]
            own = dim - len(shape) + source.meta["val"].dim()
            if own < 0 or source.meta["val"].shape[own] == 1:
                return self.add(node, node.target, (self.whole(source), smaller))
        if _is_map(node):
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: self.part(n, place))
            return self.add(node, node.target, args, kwargs)
        inner = shape[dim] // (place.rows * self._count)
        split = [*shape[:dim], place.rows, self._count, inner, *shape[dim + 1 :]]
        each = self.add(node, aten.view.default, (self.whole(node), split))
        index = self.add(node, aten.view.default, (self.number, [1]))
        chosen = self.add(node, aten.index_select.default, (each, dim + 1, index))
        return self.add(node, aten.view.default, (chosen, smaller))

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
        return self.add(node, plan.target, args, kwargs)


def with_loop(analysis: Analysis) -> fx.GraphModule:
    """The graph that runs in micro-batches.

    Args:
        analysis: A labelled graph without an obstacle.
    """
    return _Tiling(analysis).graph_module()


class _Tiling:
    def __init__(self, analysis: Analysis) -> None:
        self._of = analysis
        (mode,) = {n.meta["val"].fake_mode for n in analysis.graph.find_nodes(op="placeholder")}
        self._mode = mode
        self._body = _Body(analysis, mode)
        self._graph = fx.Graph()
        self._known: dict[fx.Node, fx.Node] = {}

    def graph_module(self) -> fx.GraphModule:
        of, body = self._of, self._body
        sums, rows = self._results()
        with self._mode:
            starts = [torch.empty(n.meta["val"].shape, dtype=_wide(n.meta["val"].dtype)) for n in sums]
            starts += [torch.empty(self._stacked(n), dtype=n.meta["val"].dtype) for n in rows]
        carried = [body.carried(f"carried_{i}", value) for i, value in enumerate(starts)]
        results = [
            body.add(n, aten.add.Tensor, (held, body.value(n))) for n, held in zip(sums, carried, strict=False)
        ]
        for node, held in zip(rows, carried[len(sums) :], strict=True):
            index = body.add(node, aten.view.default, (body.number, [1]))
            row = body.add(node, aten.unsqueeze.default, (body.value(node), 0))
            results.append(body.add(node, aten.index_copy.default, (held, 0, index, row)))
        for node, held in zip(results, carried, strict=True):
            node.meta["val"] = held.meta["val"]  # estimates of memory count it once: a compiled loop keeps it in place
        following = body.add(body.number, aten.add.Tensor, (body.number, 1))
        body.graph.output((following, *results))

        for node in of.graph.find_nodes(op="placeholder"):
            self._copy(node)
        first = [self._add(aten.full.default, [], 0, dtype=torch.int64, device=torch.device("cpu"))]
        first += [
            self._add(aten.full.default, list(v.shape), 0, dtype=v.dtype, device=torch.device("cpu")) for v in starts
        ]
        self._draw()
        additional = [self._early(node) for node in body.outer]
        root = nn.Module()
        root.micro_batch = fx.GraphModule(nn.Module(), body.graph)
        root.goes_on = fx.GraphModule(nn.Module(), self._condition(body, len(carried)))
        goes_on, micro_batch = self._graph.get_attr("goes_on"), self._graph.get_attr("micro_batch")
        loop = self._graph.call_function(LOOP, (goes_on, micro_batch, tuple(first), tuple(additional)))
        loop.meta["val"] = tuple(node.meta["val"] for node in first)
        for at, node in enumerate([*sums, *rows], 1):
            got = self._graph.call_function(operator.getitem, (loop, at))
            got.meta["val"] = loop.meta["val"][at]
            self._known[node] = self._settled(node, got)
        self._rest(root)
        return fx.GraphModule(root, self._graph)

    # -- what comes out of the loop --------------------------------------------------------------------------

    def _results(self) -> tuple[list[fx.Node], list[fx.Node]]:
        """The sums and the rows of samples that are needed after the loop."""
        sums: dict[fx.Node, None] = {}
        rows: dict[fx.Node, None] = {}
        for node in self._of.graph.nodes:
            if node.op != "output" and not (node.op == "call_function" and self._of.labels[node] == LATER):
                continue
            for source in node.all_input_nodes:
                label = self._of.labels[source]
                while isinstance(label, Partial) and source.target in SAME:
                    source = source.args[0]  # type: ignore[assignment]
                if isinstance(label, Partial):
                    sums[source] = None
                elif isinstance(label, Along) and source not in self._of.early:
                    rows[source] = None
        return list(sums), list(rows)

    def _stacked(self, node: fx.Node) -> list[int]:
        """The shape of the rows of all micro-batches, by micro-batch."""
        return [self._of.count, *_smaller(node.meta["val"].shape, self._of.labels[node].dim, self._of.count)]

    def _settled(self, node: fx.Node, got: fx.Node) -> fx.Node:
        like, label = node.meta["val"], self._of.labels[node]
        if isinstance(label, Along):
            smaller = _smaller(like.shape, label.dim, self._of.count)
            split = [*smaller[: label.dim], label.rows, smaller[label.dim] // label.rows, *smaller[label.dim + 1 :]]
            each = self._add(aten.view.default, got, [self._of.count, *split])
            order = [*range(1, label.dim + 2), 0, *range(label.dim + 2, each.meta["val"].dim())]
            return self._add(aten.reshape.default, self._add(aten.permute.default, each, order), list(like.shape))
        if label.is_mean:
            got = self._add(aten.div.Tensor, got, self._of.count)
        return got if got.meta["val"].dtype == like.dtype else self._add(aten._to_copy.default, got, dtype=like.dtype)

    # -- the graph around it -----------------------------------------------------------------------------------

    def _add(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = self._graph.call_function(target, args, kwargs)
        given, named = fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        with self._mode, torch.no_grad():
            node.meta["val"] = target(*given, **named)
        return node

    def _copy(self, node: fx.Node) -> fx.Node:
        self._known[node] = self._graph.node_copy(node, self._known.__getitem__)
        return self._known[node]

    def _draw(self) -> None:
        """Random numbers are drawn in the order in which they were."""
        for node in self._of.graph.nodes:
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and self._of.labels[node] == WHOLE:
                self._early(node)
                for result in node.users:  # at once, so that what nobody asks for goes
                    if result.target is operator.getitem:
                        self._early(result)

    def _early(self, node: fx.Node) -> fx.Node:
        """A node that does not depend on the loop, with all that it is computed from."""
        waiting = [node]
        while waiting:
            at = waiting[-1]
            missing = [n for n in at.all_input_nodes if n not in self._known]
            if at in self._known or not missing:
                waiting.pop()
                if at not in self._known:
                    self._copy(at)
            waiting += missing
        return self._known[node]

    def _rest(self, root: nn.Module) -> None:
        """What comes after the loop, what can wait until then, and at the end what is written to state."""
        last = [node for node in self._of.graph.nodes if node.op == "output" or _writes(node)]
        for node in self._of.graph.nodes:
            if node.op == "get_attr":
                setattr(root, node.target, getattr(self._of.graph.owning_module, node.target))
            if node in last or (node.op == "call_function" and self._of.labels[node] == LATER):
                for source in node.all_input_nodes:
                    self._after(source)
                if node not in last:
                    self._copy(node)
        for node in last:
            self._copy(node)

    def _after(self, node: fx.Node) -> None:
        if node in self._known:
            return
        label = self._of.labels[node]
        if isinstance(label, Partial):
            self._after(node.args[0])  # type: ignore[arg-type]  # of SAME
            self._copy(node)
        else:
            self._early(node)

    @staticmethod
    def _condition(body: _Body, carried: int) -> fx.Graph:
        graph = fx.Graph()
        places = list(body.graph.find_nodes(op="placeholder"))
        inputs = [graph.placeholder(f"in_{i}") for i in range(len(places))]
        for node, like in zip(inputs, places, strict=True):
            node.meta["val"] = like.meta["val"]
        count = body._count
        less = graph.call_function(aten.lt.Scalar, (inputs[0], count))
        with body._mode:
            less.meta["val"] = torch.empty((), dtype=torch.bool)
        graph.output(less)
        return graph


def _smaller(shape: Sequence[int], dim: int, count: int) -> list[int]:
    """The shape of a micro-batch's part of a value of `shape`."""
    return [size // count if i == dim else size for i, size in enumerate(shape)]


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


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums over micro-batches have while they are added up."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
