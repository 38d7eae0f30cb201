"""Which values of a graph differ between systems that run it on parts of one batch, and along which dimension."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from cstorch._torch_private.serialization import storage_id
from cstorch._torch_private.tracing import mutated_arguments
from cstorch.tracing.across_systems import COMBINE

aten = torch.ops.aten

_VIEWS = {aten.view.default, aten._unsafe_view.default, aten.reshape.default}
_REDUCTIONS = {
    "sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "var", "std", "var_mean",
    "std_mean", "logsumexp", "median", "nanmedian", "linalg_vector_norm", "norm", "count_nonzero", "mode", "nansum",
}  # fmt: skip
_OVERWRITE = {aten.zero_.default, aten.copy_.default, aten.fill_.Scalar, aten.fill_.Tensor}


class BatchDims:
    """Follows the parts of a batch through a graph.

    A value differs between systems when it is computed from their parts of the batch or from random numbers. The
    dimension along which its parts follow one another is known as long as every operation keeps samples apart.

    Args:
        graph: The graph; its nodes have their fake tensors in `meta["val"]`.
        parts: The placeholders that are parts of a batch, along their first dimension.
        samples: The number of samples in a part; 0 to follow no dimension.

    Attributes:
        overwritten: For memory that was overwritten whole with a value that is the same on all systems, the last
            operation that did so, by the memory's key.
    """

    def __init__(self, graph: fx.Graph, parts: Iterable[fx.Node], samples: int) -> None:
        self._dims: dict[fx.Node, Any] = dict.fromkeys(parts, 0 if samples else None)
        self._samples = samples
        self._memory = {key(node) for node in self._dims}
        self.overwritten: dict[int, fx.Node] = {}
        for node in graph.nodes:
            if node.op == "call_function":
                self._follow(node)

    def differs(self, node: fx.Node) -> bool:
        """Whether the value of `node` differs between systems."""
        return any(key(value) in self._memory for value in _values(node))

    def dim(self, node: fx.Node) -> int | None:
        """The dimension of the batch in a value that differs; None when samples are mixed in it."""
        found: int | None = self._dims.get(node)
        return found

    def _follow(self, node: fx.Node) -> None:
        func, args = node.target, node.args
        if func is operator.getitem:
            source: Any = args[0]
            index: Any = args[1]
            dims = self._dims.get(source)
            self._dims[node] = dims[index] if isinstance(dims, tuple) else None
            return
        if not isinstance(func, torch._ops.OpOverload) or func in COMBINE:
            return
        inputs = [a for a in pytree.tree_leaves((args, node.kwargs)) if isinstance(a, fx.Node)]
        written = [a for a in mutated_arguments(func, args, node.kwargs) if isinstance(a, fx.Node)]
        whole = func in _OVERWRITE and _is_whole(args[0])  # type: ignore[arg-type]
        sources = [a for a in inputs if not (whole and a is args[0])]
        differs = torch.Tag.nondeterministic_seeded in func.tags or any(map(self.differs, sources))
        for target in written:
            if whole and not differs:
                self._memory.discard(key(target))
                self.overwritten[key(target)] = node
            elif differs:
                self._memory.add(key(target))
        if not differs:
            return
        self._memory.update(key(value) for value in _values(node))
        if isinstance(node.meta.get("val"), torch.Tensor):
            self._dims[node] = self._dim_of(node, node.meta["val"], sources)
        else:
            self._dims[node] = tuple(
                self._dim_of(node, v, sources) if isinstance(v, torch.Tensor) else None for v in node.meta["val"]
            )

    def _dim_of(self, node: fx.Node, value: torch.Tensor, sources: list[fx.Node]) -> int | None:
        known = [s for s in sources if isinstance(self._dims.get(s), int) and self.differs(s)]
        found = {_moved(node, source, self._dims[source], value, self._samples) for source in known}
        return found.pop() if len(found) == 1 else None


def key(node: Any) -> int:
    """What tells the memory of a value from other memory."""
    return storage_id(node.meta["val"] if isinstance(node, fx.Node) else node)


def written_memory(graph: fx.Graph) -> set[int]:
    """The keys of the memory that operations of a graph write to."""
    return {
        key(target)
        for node in graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
        for target in mutated_arguments(node.target, node.args, node.kwargs)
        if isinstance(target, fx.Node)
    }


def _values(node: fx.Node) -> list[torch.Tensor]:
    return [v for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)]


def _is_whole(node: fx.Node) -> bool:
    value = node.meta["val"]
    return bool(value.numel() * value.itemsize == value.untyped_storage().nbytes())


def _moved(node: fx.Node, source: fx.Node, dim: int, out: torch.Tensor, samples: int) -> int | None:
    """Where dimension `dim` of `source` is in `out`, a result of `node`; None when it is gone or samples are mixed."""
    func: Any = node.target
    value = source.meta["val"]
    shape: tuple[int, ...] = tuple(value.shape)
    rest: Any = node.args[1:]
    name = func.overloadpacket.__name__
    if func in _VIEWS:
        if dim == 0:  # samples follow one another in memory: every row of `out` belongs to one
            return 0 if out.dim() and out.shape[0] % samples == 0 else None
        return dim if out.shape[: dim + 1] == shape[: dim + 1] else None
    if name in ("permute", "transpose", "t", "movedim"):
        probe = torch.empty(tuple(range(2, value.dim() + 2)), device="meta")
        return list(func(probe, *rest).shape).index(dim + 2)
    if name in ("unsqueeze", "squeeze", "select"):
        if name == "squeeze" and not rest:
            return dim - sum(n == 1 for n in shape[:dim])
        at: list[int] = [d % (value.dim() + (name == "unsqueeze")) for d in _ints(rest[0])]
        if name == "unsqueeze":
            return int(dim + (at[0] <= dim))
        if name == "select" and at[0] == dim:
            return None
        return int(dim - sum(d < dim and (name == "select" or shape[d] == 1) for d in at))
    if name in _REDUCTIONS:
        dims = [d % max(value.dim(), 1) for d in _ints(rest[0])] if rest and rest[0] is not None else []
        if not dims or dim in dims:
            return None
        return dim if out.dim() == value.dim() else dim - sum(d < dim for d in dims)
    if name in ("mm", "addmm", "bmm", "baddbmm"):
        left, right = node.args[-2:] if "add" in name else node.args[:2]
        if name.endswith("bmm") and dim == 0:
            return 0
        if source is left and dim == value.dim() - 2:
            return dim
        return dim if source is right and source is not left and dim == value.dim() - 1 else None
    if torch.Tag.pointwise in func.tags or name.startswith("expand"):
        dim += out.dim() - value.dim()  # broadcast from the right
        return dim if out.shape[dim] == shape[dim - out.dim()] else None
    return dim if dim < out.dim() and out.shape[dim] == shape[dim] else None


def _ints(value: Any) -> list[int]:
    return [value] if isinstance(value, int) else list(value)
