"""Makes a program one that runs over micro-batches: a loop within its graph, between what is computed once."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn

from cstorch.compiler.loops import LOOP
from cstorch.compiler.micro_batch.analysis import SAME, Analysis
from cstorch.compiler.micro_batch.body import Body, smaller
from cstorch.compiler.micro_batch.labels import LATER, WHOLE, Along, Partial

aten = torch.ops.aten


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
        self._body = Body(analysis, mode)
        self._graph = fx.Graph()
        self._known: dict[fx.Node, fx.Node] = {}

    def graph_module(self) -> fx.GraphModule:
        of, body = self._of, self._body
        sums, rows = self._results()
        with self._mode:
            starts = [torch.empty(n.meta["val"].shape, dtype=_wide(n.meta["val"].dtype)) for n in sums]
            starts += [torch.empty(self._stacked(n), dtype=n.meta["val"].dtype) for n in rows]
        carried = [body.carried(f"carried_{i}", value) for i, value in enumerate(starts)]
        results = [body.add(n, aten.add.Tensor, (held, body.value(n))) for n, held in zip(sums, carried, strict=False)]
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
        root.goes_on = fx.GraphModule(nn.Module(), self._condition(body))
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
                    source = source.all_input_nodes[0]
                if isinstance(label, Partial):
                    sums[source] = None
                elif isinstance(label, Along) and source not in self._of.early:
                    rows[source] = None
        return list(sums), list(rows)

    def _stacked(self, node: fx.Node) -> list[int]:
        """The shape of the rows of all micro-batches, by micro-batch."""
        return [self._of.count, *smaller(node.meta["val"].shape, self._of.labels[node].dim, self._of.count)]

    def _settled(self, node: fx.Node, got: fx.Node) -> fx.Node:
        like, label = node.meta["val"], self._of.labels[node]
        if isinstance(label, Along):
            part, dim = smaller(like.shape, label.dim, self._of.count), label.dim
            split = [*part[:dim], label.rows, part[dim] // label.rows, *part[dim + 1 :]]
            each = self._add(aten.view.default, got, [self._of.count, *split])
            order = [*range(1, dim + 2), 0, *range(dim + 2, each.meta["val"].dim())]
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
        last = dict.fromkeys(node for node in self._of.graph.nodes if node.op == "output" or _writes(node))
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
        if isinstance(label, Partial):  # of SAME
            self._after(node.all_input_nodes[0])
            self._copy(node)
        else:
            self._early(node)

    @staticmethod
    def _condition(body: Body) -> fx.Graph:
        """Whether there is another micro-batch."""
        graph = fx.Graph()
        places = list(body.graph.find_nodes(op="placeholder"))
        inputs = [graph.placeholder(f"in_{i}") for i in range(len(places))]
        for node, like in zip(inputs, places, strict=True):
            node.meta["val"] = like.meta["val"]
        less = graph.call_function(aten.lt.Scalar, (inputs[0], body.count))
        with body.mode:
            less.meta["val"] = torch.empty((), dtype=torch.bool)
        graph.output(less)
        return graph


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums over micro-batches have while they are added up."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
