"""The random draws of a trace: a recomputation under a restored generator state gets the numbers drawn before.

`torch.utils.checkpoint` notes the state of the generator, and restores it to run a part of the model again in backward.
In a trace no generator moves, so what is noted is the place in the order of draws, and a draw that is made again from
such a place takes the values of the first one.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from cstorch.errors import TraceError
from cstorch.where import user_line

aten = torch.ops.aten


class DrawOrder:
    """The draws of one trace, in order."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, fx.Node]] = []
        self._values: dict[fx.Node, fx.Node] = {}
        self._next = 0
        self._places: list[tuple[torch.Tensor, int]] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Within, states of the cpu generator that were got in this trace stand for places in the order of draws."""
        get, put = torch.random.get_rng_state, torch.random.set_rng_state

        def get_state() -> torch.Tensor:
            state = get()
            self._places.append((state, self._next))
            return state

        def set_state(new_state: torch.Tensor) -> None:
            for state, place in self._places:
                if state is new_state:
                    self._next = place
            put(new_state)

        modules: list[Any] = [torch, torch.random]
        for module in modules:
            module.get_rng_state, module.set_rng_state = get_state, set_state
        try:
            yield
        finally:
            for module in modules:
                module.get_rng_state, module.set_rng_state = get, put

    def again(self, func: Any, args: tuple[Any, ...], out: Any) -> fx.Node | None:
        """The values that a draw, made again, had the first time: of `native_dropout` the mask. None: it is new.

        Args:
            func: The operator.
            args: Its arguments in the graph.
            out: Its fake result.

        Raises:
            TraceError: the draw is another one than the first time, or depends on values.
        """
        if self._next == len(self._made):
            return None
        first, node = self._made[self._next]
        is_dropout = func is aten.native_dropout.default
        numbers_only = is_dropout or func._schema.is_mutable or func.overloadpacket.__name__.endswith("_like")
        given = [a for a in args[numbers_only:] if isinstance(a, fx.Node)]
        drawn, before = (v["val"][1] if is_dropout else v["val"] for v in ({"val": out}, node.meta))
        if first is not func or given or drawn.shape != before.shape or drawn.dtype != before.dtype:
            raise TraceError(
                f"{func} at {user_line()} draws random numbers from a restored generator state, and this draw cannot "
                f"be repeated: it depends on values, or the first one was another ({first}). With "
                "torch.utils.checkpoint, pass preserve_rng_state=False, or leave random operations other than "
                "dropout out of the checkpointed part."
            )
        self._next += 1
        if node not in self._values:
            value = node
            if is_dropout:
                with node.graph.inserting_after(node):
                    value = node.graph.call_function(operator.getitem, (node, 1))
                value.meta["val"] = before
            with node.graph.inserting_after(value):  # at once: the step may change the tensor in place later
                copy = node.graph.call_function(aten.clone.default, (value,))
            copy.meta["val"] = drawn
            self._values[node] = copy
        return self._values[node]

    def add(self, func: Any, node: fx.Node) -> None:
        """Note a new draw."""
        self._made.append((func, node))
        self._next += 1
