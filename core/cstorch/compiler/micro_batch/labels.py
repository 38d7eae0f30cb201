"""Labels of the values of a graph: how each relates to the batch, when that is taken in micro-batches of equal size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Along:
    """The values of the micro-batches, one after another along a dimension, are that of the whole batch.

    Attributes:
        dim: The dimension.
        rows: So many times is it so within the dimension: 5 where 5 time steps of all samples have become one.
    """

    dim: int
    rows: int = 1


@dataclass(frozen=True)
class Partial:
    """The sum of the values of all micro-batches is that of the whole batch, or their mean is.

    Attributes:
        is_mean: Whether it is the mean.
    """

    is_mean: bool = False


@dataclass(frozen=True)
class Whole:
    """The value does not depend on the micro-batch: it is computed once, before all of them or where it is needed."""


@dataclass(frozen=True)
class Later:
    """The value depends on all micro-batches: it is computed once, after them."""


Label = Along | Partial | Whole | Later

WHOLE, LATER, SUM, MEAN = Whole(), Later(), Partial(), Partial(is_mean=True)


class MixesSamplesError(Exception):
    """An operator's result for the whole batch does not follow from its results for micro-batches."""


class Call:
    """One operator, as its rule sees it: a rule says what it takes for a micro-batch, and returns its label.

    Args:
        node: The node.
        labels: The labels of the nodes before it.
        early: The nodes that are computed from the batch alone, so that their whole value is at hand.
        count: So many micro-batches make a batch.

    Attributes:
        target, args, kwargs: The operator for a micro-batch, and its arguments; a rule puts other numbers in where
            those of the whole batch are.
        needs: The dimension along which each node among the arguments is taken in micro-batches; None: whole.
        rows: `Along.rows` of the arguments, and of the results unless the rule says otherwise.
    """

    def __init__(self, node: fx.Node, labels: dict[fx.Node, Any], early: set[fx.Node], count: int) -> None:
        self.node, self.count, self._labels, self._early = node, count, labels, early
        self.target: Any = node.target
        self.args: list[Any] = list(node.args)
        self.kwargs: dict[str, Any] = dict(node.kwargs)
        self.needs: dict[fx.Node, int | None] = {}
        rows = {label.rows for n in node.all_input_nodes if isinstance(label := labels[n], Along)}
        if len(rows) != 1:
            raise MixesSamplesError
        (self.rows,) = rows

    @property
    def out(self) -> torch.Tensor:
        """The fake result."""
        value: torch.Tensor = self.node.meta["val"]
        return value

    @property
    def tensors(self) -> list[fx.Node]:
        """The nodes among the arguments, each once."""
        return list(self.node.all_input_nodes)

    def arg(self, position: int, default: Any = None) -> Any:
        """An argument by position."""
        return self.args[position] if position < len(self.args) else default

    @property
    def name(self) -> str:
        """The operator's name."""
        return str(self.node.target.overloadpacket.__name__)  # type: ignore[union-attr]

    def named(self, name: str) -> Any:
        """An argument by the name that the operator gives it; its default where it is left out, or None."""
        if name in self.kwargs:
            return self.kwargs[name]
        for position, argument in enumerate(self.node.target._schema.arguments):  # type: ignore[union-attr]
            if argument.name == name:
                return self.arg(position, argument.default_value)
        return None

    def dim(self, node: Any) -> int | None:
        """The dimension of the batch in an argument; None where it has none."""
        label = self._labels.get(node) if isinstance(node, fx.Node) else None
        return label.dim if isinstance(label, Along) else None

    def need(self, node: Any, dim: int) -> None:
        """The operator takes `node` in micro-batches along `dim`; None or a number for a node is left as it is."""
        if not isinstance(node, fx.Node):
            return
        known = self.dim(node)
        if known is not None and known != dim and node not in self._early:
            raise MixesSamplesError
        if self.needs.setdefault(node, dim) != dim or self.size(node, dim) % (self.rows * self.count):
            raise MixesSamplesError

    def whole(self, node: Any) -> None:
        """The operator takes `node` whole."""
        if not isinstance(node, fx.Node):
            return
        if self.dim(node) is not None and node not in self._early:
            raise MixesSamplesError
        if self.needs.setdefault(node, None) is not None:
            raise MixesSamplesError

    def size(self, node: fx.Node, dim: int) -> int:
        """The size of a dimension of an argument."""
        return int(node.meta["val"].shape[dim])

    def part(self, size: int) -> int:
        """What a size of the whole batch is for a micro-batch."""
        if size % self.count:
            raise MixesSamplesError
        return size // self.count

    def place(self, node: fx.Node) -> Along | None:
        """How `node` is taken; None: whole."""
        dim = self.needs.get(node)
        return None if dim is None else Along(dim, self.rows)

    def ends(self) -> None:
        """Check that the rule has said of every argument with a batch how it is taken."""
        for node in self.tensors:
            if self.dim(node) is not None and node not in self.needs:
                raise MixesSamplesError


def values_of(node: fx.Node) -> list[torch.Tensor]:
    """The fake tensors that a node makes."""
    return [value for value in pytree.tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)]
