"""How much memory the values of a graph take, operation by operation, if each is freed after its last use."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import fx
from torch.utils import _pytree as pytree

from cstorch._torch_private.serialization import storage_id
from cstorch.compiler.loops import loops_of


@dataclass(frozen=True)
class Liveness:
    """Memory of the temporaries of one run: activations and gradients, but no inputs.

    Compiled kernels keep many small values in registers, so that a program takes less than this.

    Attributes:
        peak: The most bytes that are there at once.
        at: The operation, counted from 0, at which that is so; 0 when there are none.
        course: The bytes that are there after each operation.
    """

    peak: int
    at: int
    course: list[int]


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """The values that a node makes, as fake tensors."""
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return [value for value in leaves if isinstance(value, torch.Tensor) and value.layout is torch.strided]


def bytes_made(node: fx.Node) -> int:
    """The bytes of memory that a node's results are the first to use."""
    known = {storage_id(value) for source in node.all_input_nodes for value in tensors_of(source)}
    made = {storage_id(value): value.untyped_storage().nbytes() for value in tensors_of(node)}
    return sum(size for memory, size in made.items() if memory not in known)


def liveness(graph: fx.GraphModule) -> Liveness:
    """The memory of the temporaries of `graph`, whose nodes carry the values of the trace (`meta["val"]`).

    While a loop runs there are those of one turn too.
    """
    loops = {loop.node: liveness(loop.turn).peak for loop in loops_of(graph)}
    size: dict[int, int] = {}
    born: dict[int, int] = {}
    last: dict[int, int] = {}
    given: set[int] = set()
    within: dict[int, int] = {}
    position = -1
    for node in graph.graph.nodes:
        memories = {storage_id(value): value.untyped_storage().nbytes() for value in tensors_of(node)}
        if node.op in ("placeholder", "get_attr"):
            given.update(memories)
            continue
        if node.op == "call_function":
            position += 1
            within[position] = loops.get(node, 0)
        for memory, count in memories.items():
            if memory not in given and memory not in born:
                born[memory], size[memory] = position, count
        used = {storage_id(value) for source in node.all_input_nodes for value in tensors_of(source)}
        last.update(dict.fromkeys(used.union(memories), position))
    freed: dict[int, int] = defaultdict(int)
    made: dict[int, int] = defaultdict(int)
    for memory, start in born.items():
        made[start] += size[memory]
        freed[last[memory]] += size[memory]
    course, peak, at, now = [], 0, 0, 0
    for step in range(position + 1):
        now += made[step]
        there = now + within[step]
        if there > peak:
            peak, at = there, step
        course.append(there)
        now -= freed[step]
    return Liveness(peak, at, course)
