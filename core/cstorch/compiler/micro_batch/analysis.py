"""Labels every value of a functional graph, and says what keeps it from being run in micro-batches."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

import cstorch.compiler.micro_batch.layers  # noqa: F401  its rules
from cstorch._torch_private.tracing import mutated_arguments
from cstorch.compiler.micro_batch.labels import LATER, WHOLE, Along, Call, Later, MixesSamplesError, Partial
from cstorch.compiler.micro_batch.plain import OF_TARGETS
from cstorch.compiler.micro_batch.rules import WITH_ROWS, rule_of
from cstorch.compiler.micro_batch.shapes import view

aten = torch.ops.aten

SAME = frozenset({
    aten.t.default, aten.transpose.int, aten.permute.default, aten.detach.default, aten.alias.default,
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default, aten.squeeze.dim,
})  # fmt: skip
"""Operators that arrange the elements of a sum over micro-batches anew: they can as well be run after it is there."""


@dataclass(frozen=True)
class Plan:
    """What an operator computes for a micro-batch: see `Call`."""

    target: Any
    args: list[Any]
    kwargs: dict[str, Any]
    needs: dict[fx.Node, Along | None]


class Analysis:
    """The labels of a graph.

    Args:
        graph: A functional graph that `say_plainly` has been through.
        leaves: The placeholders that are a batch along their first dimension.
        state: The placeholders that are state.
        gradients: The outputs that are gradients to be kept.
        count: So many micro-batches make a batch.

    Attributes:
        labels: Of each node, a label; of a node with several results, a tuple of them.
        plans: How each operator within the micro-batches is run.
        early: The nodes that are computed from the batch alone, without state and random numbers; of the weights of
            classes, those of the targets too.
        obstacle: The first operator that keeps the graph from being run in micro-batches; None when all is well.
    """

    def __init__(
        self, graph: fx.Graph, leaves: list[fx.Node], state: list[fx.Node], gradients: list[int], count: int
    ) -> None:
        self._gradients = gradients
        self.graph, self.count = graph, count
        self.labels: dict[fx.Node, Any] = {}
        self.plans: dict[fx.Node, Plan] = {}
        self._state = set(state)
        self.early = self._early(leaves)
        for node in graph.nodes:
            if node.op == "call_function":
                self.labels[node] = self._label(node)
            elif node.op != "output":
                self.labels[node] = Along(0) if node in leaves else WHOLE
        self.obstacle = self._obstacle()

    def _early(self, leaves: list[fx.Node]) -> set[fx.Node]:
        found: set[fx.Node] = set()
        apart: set[fx.Node] = set()  # from the batch
        for node in self.graph.nodes:
            if node.op == "output":
                continue
            is_draw = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            if node not in leaves and all(source in apart for source in node.all_input_nodes):
                apart.add(node)
            given = apart if OF_TARGETS in node.meta else set()
            if (
                node not in self._state
                and not is_draw
                and all(source in found or source in given for source in node.all_input_nodes)
            ):
                found.add(node)
        return found

    def _label(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            source, index = node.args
            given = self.labels[source]  # type: ignore[index]
            return given[index] if isinstance(given, tuple) else given  # type: ignore[index]
        labels = [self.labels[source] for source in node.all_input_nodes]
        if all(label == WHOLE for label in labels):
            return WHOLE
        if self._writes(node):
            return LATER
        if any(isinstance(label, (Later, Partial)) for label in labels):
            return self._sum_of_sums(node, labels) or LATER
        try:
            call, label = self._ruled(node)
        except MixesSamplesError:
            label = None
        several = label if isinstance(label, tuple) else (label,)
        if node in self.early and not all(isinstance(one, Along) for one in several):
            return WHOLE  # its whole value is at hand
        if label is None:
            return LATER
        self.plans[node] = Plan(call.target, call.args, call.kwargs, {n: call.place(n) for n in node.all_input_nodes})
        return label

    def _ruled(self, node: fx.Node) -> tuple[Call, Any]:
        """What the rule of the operator says."""
        call = Call(node, self.labels, self.early, self.count)
        rule = rule_of(node)
        if call.rows != 1 and rule not in WITH_ROWS:
            raise MixesSamplesError
        label = rule(call)
        call.ends()
        if call.rows != 1 and rule is not view:
            label = pytree.tree_map_only(Along, lambda along: Along(along.dim, call.rows), label)
        return call, label

    def _sum_of_sums(self, node: fx.Node, labels: list[Any]) -> Partial | None:
        """The label of what adds up over micro-batches as its arguments do."""
        first = labels[0]
        if not isinstance(first, Partial) or any(label != first for label in labels):
            return None
        out = node.meta["val"]
        shapes = {source.meta["val"].shape for source in node.all_input_nodes}
        is_sum = node.target is aten.add.Tensor and len(labels) == 2 and not node.kwargs and shapes == {out.shape}
        is_cast = node.target is aten._to_copy.default and out.is_floating_point()
        is_wider = is_cast and out.itemsize >= node.all_input_nodes[0].meta["val"].itemsize
        if not (is_sum or is_wider or node.target in SAME):
            return None
        self.plans[node] = Plan(node.target, list(node.args), dict(node.kwargs), dict.fromkeys(node.all_input_nodes))
        return first

    # -- what keeps it from being run ----------------------------------------------------------------------

    def _obstacle(self) -> fx.Node | None:
        """The first operator that needs all samples at once, on the way to what the program keeps."""
        kept = self._kept()
        node: fx.Node
        for node in self.graph.nodes:
            if node.op != "call_function" or self.labels[node] != LATER or node not in kept:
                continue
            if node.target is aten.copy_.default or node.target is operator.getitem:
                continue
            if any(isinstance(self.labels[source], Along) for source in node.all_input_nodes):
                return node
        return None

    def _kept(self) -> set[fx.Node]:
        """The nodes on which the state and the gradients that the program leaves depend."""
        (outputs,) = self.graph.output_node().args
        kept: set[fx.Node] = {outputs[index] for index in self._gradients}  # type: ignore[index, misc]
        for node in reversed(self.graph.nodes):
            if node.op != "call_function":
                continue
            if node in kept or self._writes(node):
                kept.add(node)
                kept.update(node.all_input_nodes)
        return kept

    def _writes(self, node: fx.Node) -> bool:
        return isinstance(node.target, torch._ops.OpOverload) and bool(
            mutated_arguments(node.target, node.args, node.kwargs)
        )

    def why(self, node: fx.Node) -> str:
        """Why `node` needs all samples at once, in words."""
        if any(isinstance(self.labels[source], (Later, Partial)) for source in node.all_input_nodes):
            return "needs a result over the whole batch before the last sample is there"
        try:
            rule_of(node)
        except MixesSamplesError:
            return "is not known to keep the samples of a batch apart"
        return "takes the samples of the whole batch together"
