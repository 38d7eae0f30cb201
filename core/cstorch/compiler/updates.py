"""Finds how a traced step updates each parameter, and takes that out of the graph, for one kernel to do it for all.

Inductor spends its time per operation, and an optimizer repeats the same twenty for every parameter: of a
transformer's step they are two thirds.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from cstorch._torch_private.inductor import Epilogue
from cstorch._torch_private.serialization import storage_id
from cstorch.compiler.update_kernel import C_TYPES, EXPRESSIONS, HEADER, IN_PLACE, WITH_FACTOR, Value, kernel_source
from cstorch.report.memory import tensors_of

aten = torch.ops.aten

FEWEST = 4
"""So many parameters must be updated alike for a kernel of their own to pay."""


@dataclass(frozen=True)
class UpdateKernel:
    """One kernel, and the tensors of each parameter that it updates.

    Attributes:
        source: The C++ of a function of the kernel, by `kernel_source`.
        rows: Of each parameter: where each operand is, `(True, i)` for input i and `(False, i)` for output i of the
            program, and how many elements the parameter has.
    """

    source: str
    rows: list[tuple[list[tuple[bool, int]], int]]


@dataclass
class _Cluster:
    """The nodes that update one parameter."""

    nodes: list[fx.Node] = field(default_factory=list)
    operands: list[fx.Node] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    stores: list[tuple[int, int]] = field(default_factory=list)
    numel: int = 0

    @property
    def signature(self) -> str:
        """Equal for parameters that are updated alike."""
        kinds = [(node.meta["val"].dtype, node.meta["val"].dim() == 0) for node in self.operands]
        return repr((kinds, self.values, self.stores))


def split_updates(graph: fx.GraphModule) -> list[UpdateKernel]:
    """Take out of `graph` the updates that many parameters have in common.

    What they read of the rest of the graph becomes further outputs, behind those that are there.

    Args:
        graph: A traced graph whose nodes have their fake tensors in `meta["val"]`. It is changed.

    Returns:
        The kernels that are to run after the graph, in any order.
    """
    finder = _Finder(graph)
    alike: dict[str, list[_Cluster]] = defaultdict(list)
    for cluster in finder.clusters():
        alike[cluster.signature].append(cluster)
    chosen = [group for group in alike.values() if len(group) >= FEWEST]
    if not chosen:
        return []
    inputs = {node: i for i, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
    output = next(iter(graph.graph.find_nodes(op="output")))
    outputs: list[fx.Node] = list(output.args[0])
    kept: dict[fx.Node, int] = {}
    for cluster in (cluster for group in chosen for cluster in group):
        for node in cluster.operands:
            if node not in inputs and node not in kept:
                kept[node] = len(outputs)
                outputs.append(_contiguous(node, output))
    output.args = (tuple(outputs),)
    taken = {node for group in chosen for cluster in group for node in cluster.nodes}
    for node in reversed(list(graph.graph.nodes)):
        if node in taken:
            graph.graph.erase_node(node)
    graph.recompile()

    def place(node: fx.Node) -> tuple[bool, int]:
        return (True, inputs[node]) if node in inputs else (False, kept[node])

    return [
        UpdateKernel(
            kernel_source(
                f"cstorch_update_{i}",
                [(node.meta["val"].dtype, node.meta["val"].dim() == 0) for node in group[0].operands],
                group[0].values,
                group[0].stores,
            ),
            [([place(node) for node in cluster.operands], cluster.numel) for cluster in group],
        )
        for i, group in enumerate(chosen)
    ]


def epilogue(kernels: list[UpdateKernel], outputs: int) -> Epilogue:
    """What runs the kernels behind the graph.

    Args:
        kernels: As `split_updates` returned them.
        outputs: How many outputs the graph had before.
    """
    arguments = "void* const* all, const int64_t* sizes, int64_t rows, int64_t total, int threads"
    declarations, statements = [], []
    for i, kernel in enumerate(kernels):
        sizes = [numel for _, numel in kernel.rows]
        data = [f"{'in' if is_input else 'out'}put_data[{at}]" for row, _ in kernel.rows for is_input, at in row]
        declarations.append(f'extern "C" void cstorch_update_{i}({arguments});')
        statements += [
            f"static const int64_t sizes_{i}[] = {{{', '.join(map(str, sizes))}}};",
            f"void* const all_{i}[] = {{{', '.join(data)}}};",
            f"cstorch_update_{i}(all_{i}, sizes_{i}, {len(sizes)}, {sum(sizes)}, {torch.get_num_threads()});",
        ]
    source = HEADER + "\n".join(kernel.source for kernel in kernels)
    return Epilogue(source, "\n".join(declarations), "\n".join(statements), outputs)


def _contiguous(node: fx.Node, before: fx.Node) -> fx.Node:
    value = node.meta["val"]
    if value.is_contiguous():
        return node
    with before.graph.inserting_before(before):
        made = before.graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    made.meta["val"] = torch.empty_like(value, memory_format=torch.contiguous_format)
    return made


class _Finder:
    """Finds the nodes that can run after all others, parameter by parameter.

    Args:
        graph: The graph, which is not changed.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        self._nodes = list(graph.graph.nodes)
        self._order = {node: i for i, node in enumerate(self._nodes)}
        self._root: dict[fx.Node, fx.Node] = {}  # the node that made the memory
        self._whole: set[fx.Node] = set()  # those that are all of their root, in its shape
        self._touching: dict[fx.Node, list[fx.Node]] = defaultdict(list)
        self._writes: dict[fx.Node, list[fx.Node]] = defaultdict(list)
        made_by: dict[int, fx.Node] = {}
        for node in self._nodes:
            for arg in dict.fromkeys(node.all_input_nodes):
                self._touching[self._root[arg]].append(node)
            memories = [storage_id(value) for value in tensors_of(node)]
            root = self._root[node] = next((made_by[memory] for memory in memories if memory in made_by), node)
            for memory in memories:
                made_by.setdefault(memory, root)
            is_same = _writes(node) or node.target in (aten.detach.default, aten.alias.default)
            if root is node or (is_same and node.args[0] in self._whole):
                self._whole.add(node)
            if _writes(node):
                self._writes[root].append(node)

    def clusters(self) -> list[_Cluster]:
        """The updates that can be taken out."""
        late = {node for node in self._nodes if _is_supported(node)}
        while True:
            before = len(late)
            for node in reversed(self._nodes):
                if node in late and not self._can_be_late(node, late):
                    late.discard(node)
            found = self._apart(late)
            if len(late) == before:
                return [cluster for group in found if (cluster := self._cluster(group)) is not None]

    def _can_be_late(self, node: fx.Node, late: set[fx.Node]) -> bool:
        at = self._order[node]
        if any(user not in late for user in node.users):
            return False
        for arg in node.all_input_nodes:
            root = self._root[arg]
            writes = self._writes.get(root, [])
            if not writes:
                continue
            if any(write not in late and self._order[write] > at for write in writes):
                return False
            if any(write in late for write in writes) and arg not in self._whole:
                return False
        if _writes(node):
            return all(other in late for other in self._touched(node) if self._order[other] > at)
        return True

    def _touched(self, node: fx.Node) -> list[fx.Node]:
        """The other nodes that use the memory of `node`; not those that only make a view of it."""
        touching = self._touching[self._root[node]]
        return [n for n in touching if n is not node and (_writes(n) or self._root[n] is n)]

    def _apart(self, late: set[fx.Node]) -> list[list[fx.Node]]:
        """Those of one parameter together. Numbers that several parameters share are computed early instead."""
        cluster: dict[fx.Node, fx.Node] = {}

        def find(node: fx.Node) -> fx.Node:
            while cluster.setdefault(node, node) is not node:
                cluster[node] = cluster[cluster[node]]
                node = cluster[node]
            return node

        def is_number(node: fx.Node) -> bool:
            return bool(node.meta["val"].dim() == 0)

        for node in self._nodes:
            if node in late and not is_number(node):
                for arg in node.all_input_nodes:
                    root = self._root[arg]
                    written = any(write in late for write in self._writes.get(root, []))
                    if not is_number(arg) and (arg in late or written):
                        cluster[find(root if written else arg)] = find(node)
        owner: dict[fx.Node, fx.Node] = {node: find(node) for node in late if not is_number(node)}
        for node in reversed(self._nodes):
            if node in late and is_number(node):
                users = {*node.users, *(self._touched(node) if _writes(node) else ())}
                owners = {owner[user] for user in users if user in owner}
                if len(owners) == 1:
                    owner[node] = owners.pop()
                else:
                    late.discard(node)
        groups: dict[fx.Node, list[fx.Node]] = defaultdict(list)
        for node in self._nodes:
            if node in late:
                groups[owner[node]].append(node)
        for group in list(groups.values()):
            if len({tuple(node.meta["val"].shape) for node in group if not is_number(node)}) != 1:
                late.difference_update(group)
        return [group for group in groups.values() if group[0] in late]

    def _cluster(self, nodes: list[fx.Node]) -> _Cluster | None:
        """What the nodes of one parameter do, in terms of their operands; None when it changes no input."""
        made = _Cluster(nodes)
        places: dict[fx.Node, int] = {}
        written = {self._root[node] for node in nodes if _writes(node)}
        current: dict[fx.Node, Any] = {}

        def operand(node: fx.Node) -> tuple[str, int]:
            if node not in places:
                places[node] = len(made.operands)
                made.operands.append(node)
            return ("operand", places[node])

        def read(arg: Any) -> Any:
            if not isinstance(arg, fx.Node):
                return arg
            root = self._root[arg]
            if root in written:
                return current.get(root) or operand(root)
            return current[arg] if arg in current else operand(arg)

        for node in nodes:
            value = node.meta["val"]
            args = tuple(read(arg) for arg in node.args)
            if node.target in WITH_FACTOR:
                args = (*args, node.kwargs.get("value", 1))
            made.values.append(Value(node.target, args, _common(node), value.dtype, value.dim() == 0))
            current[self._root[node] if _writes(node) else node] = ("value", len(made.values) - 1)
            if value.dim():
                made.numel = value.numel()
        for root in sorted(written, key=self._order.__getitem__):
            if root.op == "placeholder":
                made.stores.append((operand(root)[1], current[root][1]))
        is_flat = all(node.meta["val"].is_contiguous() for node in made.operands if node.op == "placeholder")
        return made if is_flat and any(root.meta["val"].dim() for root in written if root.op == "placeholder") else None


def _writes(node: fx.Node) -> bool:
    """Whether a node changes memory that was there before."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _is_supported(node: fx.Node) -> bool:
    """Whether a kernel can do what `node` does: element by element, of operands of one shape and of numbers."""
    if node.target not in EXPRESSIONS or set(node.kwargs) - {"dtype", "value"}:
        return False
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype not in C_TYPES or not value.is_contiguous():
        return False
    if node.kwargs.get("dtype", value.dtype) != value.dtype:
        return False
    if not isinstance(node.kwargs.get("value", 1), (int, float)):
        return False
    for arg in node.args:
        if isinstance(arg, fx.Node):
            given = arg.meta.get("val")
            if not isinstance(given, torch.Tensor) or given.dtype not in C_TYPES:
                return False
            if given.dim() and given.shape != value.shape:
                return False
        elif not isinstance(arg, (int, float)):
            return False
    return _common(node) in C_TYPES and not (_writes(node) and node.target not in IN_PLACE)


def _common(node: fx.Node) -> torch.dtype:
    """The dtype that PyTorch would promote the last two arguments to."""
    given: list[Any] = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in node.args]
    return torch.result_type(*given[-2:]) if len(given) > 1 else node.meta["val"].dtype
