"""Makes means over a counted part of the batch those of the whole batch, where every system counts another number.

The mean over systems of their means is the mean over the batch as long as all have as many samples each. It is not
where samples are left out: labels that `ignore_index` names, tokens under a mask, classes with weights. There each
system divides its sum by the mean count of all systems, so that the mean over systems of what comes out, and of its
gradients, is the sum over the batch divided by the count over the batch.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from cstorch.tracing.across_systems import early_mean_of_systems, mean_of_systems, sum_of_systems
from cstorch.tracing.batch_dims import BatchDims, key, written_memory
from cstorch.tracing.recorder import Recorder

aten = torch.ops.aten

_LOSSES = {aten.nll_loss_forward.default, aten.nll_loss2d_forward.default}
_BACKWARD = {aten.nll_loss_backward.default, aten.nll_loss2d_backward.default}
_MEAN, _SUM = 1, 2  # of `reduction` in ATen
_SUMS = {aten.sum.default, aten.sum.dim_IntList, aten.count_nonzero.default}
_OF_A_COUNT = {
    aten.clamp.default, aten.clamp_min.default, aten._to_copy.default, aten.add.Tensor, aten.mul.Tensor,
    aten.view.default, aten.clone.default, aten.detach.default, aten.alias.default,
}  # fmt: skip
"""What may stand between a count and the division by it."""


class SharedCounts:
    """The counts of one trace.

    Args:
        recorder: The trace.
        systems: The number of systems.
        dims: Which values of it differ between systems.
    """

    def __init__(self, recorder: Recorder, systems: int, dims: BatchDims) -> None:
        self._recorder, self._systems, self._dims = recorder, systems, dims
        self._graph = recorder.graph
        self._arguments = {e.node for e in recorder.inputs if isinstance(e.source, int)}
        self._written = written_memory(self._graph)

    def share(self) -> bool:
        """Rewrite the graph; whether anything was changed."""
        nodes = list(self._graph.nodes)
        losses = [n for n in nodes if n.target in _LOSSES and n.args[3] == _MEAN and self._dims.differs(n)]
        for loss in losses:
            self._share_loss(loss)
        counts = {n.args[1]: None for n in nodes if n.target is aten.div.Tensor and self._is_mean(n)}
        for count in counts:
            self._share_count(count)
        return bool(losses or counts)

    def _call(self, func: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = self._graph.call_function(func, args, kwargs)
        with self._recorder.fake_mode:
            values = fx.map_arg((args, kwargs), lambda n: n.meta["val"])
            node.meta["val"] = func(*values[0], **values[1])
        return node

    # -- losses of classes -------------------------------------------------------------------------------

    def _share_loss(self, loss: fx.Node) -> None:
        """Let `nll_loss`, and so `cross_entropy`, divide by the mean of all systems' weights of their labels."""
        picked = {user.args[1]: user for user in loss.users if user.target is operator.getitem}
        total = self._weight_of_labels(loss, picked.get(1))
        loss.update_arg(3, _SUM)
        for backward in [user for user in getattr(picked.get(1), "users", ()) if user.target in _BACKWARD]:
            with self._graph.inserting_before(backward):
                backward.update_arg(0, self._call(aten.div.Tensor, backward.args[0], total))
            backward.update_arg(4, _SUM)
        if 0 not in picked:
            return
        mean = picked[0]  # stays the node that outputs of the program are known by
        with self._graph.inserting_after(loss):
            summed = self._call(operator.getitem, loss, 0)
        mean.target, mean.args = aten.div.Tensor, (summed, total)
        if self._place(total) > self._place(mean):
            total.append(mean)

    def _weight_of_labels(self, loss: fx.Node, own: fx.Node | None) -> fx.Node:
        """The mean over systems; on its way while the model runs, where the labels alone say it."""
        labels: Any = loss.args[1]
        weights = loss.args[2]
        if weights is None and key(labels) not in self._written:
            with self._graph.inserting_after(self._recorder.last_placeholder if labels.op == "placeholder" else labels):
                total = self._call(aten.ne.Scalar, labels, loss.args[4])
            for func, args, kwargs in (
                (aten.sum.default, (), {}),
                (aten._to_copy.default, (), {"dtype": loss.meta["val"][0].dtype}),
                (early_mean_of_systems, (self._systems,), {}),
            ):
                with self._graph.inserting_after(total):
                    total = self._call(func, total, *args, **kwargs)
        else:
            if own is None:
                with self._graph.inserting_after(loss):
                    own = self._call(operator.getitem, loss, 1)
            with self._graph.inserting_after(own):
                total = self._call(mean_of_systems, own, self._systems)
        return total

    # -- sums divided by counts --------------------------------------------------------------------------

    def _is_mean(self, division: fx.Node) -> bool:
        """Whether a sum over the batch is divided by a count that no weight has a part in."""
        above, below = division.args
        return (
            isinstance(below, fx.Node)
            and below.meta["val"].dim() == 0
            and self._is_sum(above)
            and self._count_in(below) is not None
        )

    def _is_sum(self, node: Any) -> bool:
        while isinstance(node, fx.Node) and node.target in _OF_A_COUNT and node.target is not aten.add.Tensor:
            node = node.args[0]
        return isinstance(node, fx.Node) and node.target in _SUMS and self._dims.differs(node)

    def _count_in(self, node: fx.Node) -> fx.Node | None:
        """The sum over the batch that a divisor is made of; None when it is made of other things as well."""
        while node.target in _OF_A_COUNT:
            if any(isinstance(other, fx.Node) for other in (*node.args[1:], *node.kwargs.values())):
                return None
            node = node.args[0]  # type: ignore[assignment]
        if node.target not in _SUMS or not self._dims.differs(node) or self._dims.dim(node) is not None:
            return None
        return node if self._is_of_arguments(node) else None

    def _is_of_arguments(self, node: fx.Node) -> bool:
        """Whether a value is made of the step's arguments alone, and nothing changes it."""
        seen, waiting = set(), [node]
        while waiting:
            source = waiting.pop()
            if source in seen:
                continue
            seen.add(source)
            if key(source) in self._written or (source.op == "placeholder" and source not in self._arguments):
                return False
            if torch.Tag.nondeterministic_seeded in getattr(source.target, "tags", ()):
                return False
            waiting += source.all_input_nodes
        return True

    def _share_count(self, divisor: fx.Node) -> None:
        """Let all that is divided by `divisor` be divided by what it is for the whole batch, for one system's part."""
        count = self._count_in(divisor)
        assert count is not None
        chain = [divisor]
        while chain[-1] is not count:
            chain.append(chain[-1].args[0])  # type: ignore[arg-type]
        divisions = [n for n in divisor.users if n.target is aten.div.Tensor and n.args[1] is divisor]
        place = divisor
        with self._graph.inserting_after(place):
            place = whole = self._call(sum_of_systems, count, self._systems)
        for step in reversed(chain[:-1]):
            with self._graph.inserting_after(place):
                place = whole = self._call(step.target, whole, *step.args[1:], **step.kwargs)
        with self._graph.inserting_after(place):
            share = self._call(aten.div.Tensor, whole, self._systems)
        for division in divisions:
            division.update_arg(1, share)

    def _place(self, node: fx.Node) -> int:
        return next(i for i, found in enumerate(self._graph.nodes) if found is node)
