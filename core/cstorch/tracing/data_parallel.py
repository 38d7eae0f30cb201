"""Makes a traced step one that several systems run on parts of a batch, with one result.

Gradients are averaged over the systems as soon as backward has accumulated them, so that clipping, norms, hooks and
optimizers see those of the whole batch. What the step returns or gives to closures, and state that is no parameter, is
combined at the end, where it differs between systems:

* a value with a dimension of samples: the parts one after another, as one system would return it for the whole batch;
* any other float: the mean over systems, which for the mean over a batch is the mean over the whole batch (and for a
  sum over a batch the whole sum divided by the number of systems). Means over a counted part of the batch are exact
  too: see `shared_counts.py`;
* any other integer: the sum, as of counts; state: what was there before, and the sum of what was added;
* any other truth value: whether it is true on any system.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import fx, nn

from cstorch._torch_private.backward import first_post_accumulate_grad_hook
from cstorch.device import CsxTensor
from cstorch.errors import DataError, StateError
from cstorch.tracing import nest
from cstorch.tracing.across_systems import (
    Systems,
    any_of_systems,
    gather_systems,
    mean_of_systems,
    sum_of_systems,
)
from cstorch.tracing.batch_dims import BatchDims, key
from cstorch.tracing.context import context
from cstorch.tracing.recorder import Input, Recorder
from cstorch.tracing.shared_counts import SharedCounts
from cstorch.where import user_line

aten = torch.ops.aten


def parts_of(leaves: list[torch.Tensor], systems: Systems | None, name: str) -> list[int]:
    """Positions of the arguments of a step that are divided among the systems: those with a sample in every row.

    They are the tensors whose first dimension is the batch size, which is that of most tensors in the executor's
    batch, or of most arguments outside an executor's loop. All others go to every system as they are.

    Args:
        leaves: The tensors that the step is called with.
        systems: The systems, or None for one.
        name: The step's name, for the error.

    Raises:
        DataError: the batch cannot be divided.
    """
    if systems is None or not systems.share_batch:
        return []
    batch = getattr(context.executor, "batch", None)
    among = leaves if batch is None else [t for t in nest.leaves(batch) if isinstance(t, torch.Tensor)]
    sizes = Counter(t.shape[0] for t in among if t.dim() > 0)
    if not sizes:
        return []
    size = sizes.most_common(1)[0][0]
    if size % systems.count or size == 0:
        raise DataError(
            f"the step {name!r} was called at {user_line()} with a batch of {size} samples, which cannot be divided "
            f"among num_csx={systems.count} systems. Use a batch size that is a multiple of {systems.count}, and "
            "drop_last=True, or fewer systems."
        )
    return [i for i, t in enumerate(leaves) if t.dim() > 0 and t.shape[0] == size]


def part(tensor: torch.Tensor, system: int, count: int) -> torch.Tensor:
    """The samples of one system."""
    size = tensor.shape[0] // count
    return tensor.narrow(0, system * size, size)


def first_parts(leaves: list[torch.Tensor], parts: list[int], systems: Systems | None) -> list[torch.Tensor]:
    """The arguments of a step as the first system gets them."""
    if not parts or systems is None:
        return leaves
    return [part(t, 0, systems.count) if i in parts else t for i, t in enumerate(leaves)]


class DataParallel:
    """The collectives of one trace.

    Args:
        recorder: The trace.
        systems: The systems that will run it.
        parts: Positions of the step's arguments that are parts of a batch.
    """

    def __init__(self, recorder: Recorder, systems: Systems, parts: list[int]) -> None:
        self._recorder, self._systems, self.parts = recorder, systems, parts
        self._hooks: list[Any] = []
        self._dims: BatchDims | None = None

    def __enter__(self) -> DataParallel:
        self._recorder.gradients.met = self._watch
        return self

    def __exit__(self, *error: object) -> None:
        self._recorder.gradients.met = None
        for hook in self._hooks:
            hook.remove()

    def _watch(self, tensor: CsxTensor) -> None:
        if tensor.requires_grad:
            self._hooks.append(first_post_accumulate_grad_hook(tensor, self._average))

    def _average(self, tensor: CsxTensor) -> None:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            grad: Any = tensor.grad
            mean = mean_of_systems(grad, self._systems.count)
            if self._recorder.gradients.is_of_before(tensor, grad):
                grad.copy_(mean)
            else:
                tensor.grad = mean

    # -- the end of the trace ----------------------------------------------------------------------------

    def finish(self, outputs: list[fx.Node], name: str) -> list[fx.Node]:
        """Combine the state that the step has changed and its outputs; the outputs of the program.

        Raises:
            StateError: a parameter, or state with a row for each sample, would become another one on every system.
        """
        graph = self._recorder.graph
        arguments = [e for e in self._recorder.inputs if isinstance(e.source, int)]
        divided = [e.node for e in arguments if e.source in self.parts or not self._systems.share_batch]
        samples = self._recorder.leaves[self.parts[0]].shape[0] if self.parts else 0
        dims = BatchDims(graph, divided, samples)
        if self._systems.share_batch and SharedCounts(self._recorder, self._systems.count, dims).share():
            dims = BatchDims(graph, divided, samples)
        for entry in self._recorder.inputs:
            if entry.mutated and isinstance(entry.source, torch.Tensor) and dims.differs(entry.node):
                self._settle(entry, dims, name)
        if not self._systems.share_batch:
            return outputs
        return [self._combined(n, dims.dim(n), n.meta["val"]) if dims.differs(n) else n for n in outputs]

    def _call(self, func: Any, *args: Any, like: torch.Tensor) -> fx.Node:
        node = self._recorder.graph.call_function(func, args)
        node.meta["val"] = like
        return node

    def _combined(self, node: fx.Node, dim: int | None, like: torch.Tensor) -> fx.Node:
        count = self._systems.count
        if dim is not None:
            shape = [n * count if i == dim else n for i, n in enumerate(like.shape)]
            with self._recorder.fake_mode:
                whole = torch.empty(shape, dtype=like.dtype)
            return self._call(gather_systems, node, dim, count, like=whole)
        with self._recorder.fake_mode:
            fresh = torch.empty_like(like)
        func = mean_of_systems
        if not (like.is_floating_point() or like.is_complex()):
            func = any_of_systems if like.dtype is torch.bool else sum_of_systems
        return self._call(func, node, count, like=fresh)

    def _settle(self, entry: Input, dims: BatchDims, name: str) -> None:
        shape = tuple(entry.fake.shape)
        if isinstance(entry.source, nn.Parameter):
            raise StateError(
                f"the step {name!r} changes a parameter of shape {shape} by what only the part of the batch on one "
                f"system says, so that it would become another one on each of the {self._systems.count} systems. "
                "Gradients that loss.backward() leaves in .grad are averaged over the systems; those of "
                "torch.autograd.grad() are not. Use backward(), or one system."
            )
        if dims.dim(entry.node) is not None or any(dims.dim(n) is not None for n in _writes(entry.node)):
            raise StateError(
                f"the step {name!r} keeps values of single samples in state of shape {shape}; on "
                f"{self._systems.count} systems every one has other samples. Pass such values in as an argument and "
                "return the new ones, or use one system."
            )
        old = None
        if not (entry.fake.is_floating_point() or entry.fake.dtype is torch.bool):
            old = self._counted_from(entry, dims)
        now = entry.node
        graph = self._recorder.graph
        if old is None:
            total = self._combined(now, None, entry.fake)
        else:
            added = self._call(aten.sub.Tensor, now, old, like=old.meta["val"])
            total = self._call(aten.add.Tensor, old, self._combined(added, None, old.meta["val"]), like=old.meta["val"])
        node = graph.call_function(aten.copy_.default, (now, total))
        node.meta["val"] = entry.fake

    def _counted_from(self, entry: Input, dims: BatchDims) -> fx.Node | None:
        """A copy of the integers that the step counted up from; None when it counted from zero."""
        after = dims.overwritten.get(key(entry.node))
        if after is None and not _reaches(entry.node):
            return None
        with self._recorder.fake_mode:
            like = torch.empty_like(entry.fake)
        graph = self._recorder.graph
        with graph.inserting_after(after or self._recorder.last_placeholder):
            copy = graph.call_function(aten.clone.default, (entry.node,))
        copy.meta["val"] = like
        return copy


def _writes(node: fx.Node) -> list[fx.Node]:
    """What is copied whole into the memory of `node`."""
    return [
        user.args[1]
        for user in node.users
        if user.target is aten.copy_.default and user.args[0] is node and isinstance(user.args[1], fx.Node)
    ]


def _reaches(state: fx.Node) -> bool:
    """Whether what `state` becomes depends on what it was."""
    copies = [u for u in state.users if u.target is aten.copy_.default and u.args[0] is state]
    if not copies:
        return True  # changed in place
    seen: set[fx.Node] = set()
    waiting = [n for u in copies for n in u.all_input_nodes if n is not state]
    while waiting:
        node = waiting.pop()
        if node is state:
            return True
        if node not in seen:
            seen.add(node)
            waiting += node.all_input_nodes
    return False
