"""Runs the graph passes of plugins over a program, and keeps what they leave only if it is still the same program."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from cstorch import plugins
from cstorch._torch_private.tracing import propagate
from cstorch.compiler.passes import copy_graph
from cstorch.errors import PluginError, words
from cstorch.plugin_host import Implementation
from cstorch.tracing.program import Program

if TYPE_CHECKING:
    from cstorch.backends.base import Backend


@dataclasses.dataclass(frozen=True)
class GraphContext:
    """What a graph pass is told beside the graph.

    Attributes:
        name: The name of the step function.
        backend: The backend that the program is for.
        example: Inputs with the shapes, strides and dtypes of the real ones; they must not be changed.
        state: So many of the first placeholders are state, changed in place.
    """

    name: str
    backend: Backend
    example: list[torch.Tensor]
    state: int


def transform(program: Program, example: list[torch.Tensor], backend: Backend) -> Program:
    """`program` after the graph passes of all plugins; itself when there are none.

    A pass that raises, or that changes what the program takes or returns, is left out with a warning.
    """
    context = GraphContext(program.name, backend, example, len(program.state))
    for rewrite in plugins.passes():
        graph = copy_graph(program.graph)
        try:
            graph = _changed(graph, rewrite(graph_module=graph, context=context))
            _check(program.graph, graph)
        except Exception as error:
            plugins.leave_out(rewrite.plugin, f"its graph pass failed on the step {program.name!r} ({words(error)})")
            continue
        program = dataclasses.replace(program, graph=graph, passes=(*program.passes, _identity(rewrite)))
    return program


def _changed(given: fx.GraphModule, returned: Any) -> fx.GraphModule:
    if returned is None:
        returned = given
    if not isinstance(returned, fx.GraphModule):
        raise PluginError(f"it returned a {type(returned).__name__}, expected a torch.fx.GraphModule or None")
    returned.graph.lint()
    returned.recompile()
    return returned


def _check(before: fx.GraphModule, after: fx.GraphModule) -> None:
    """Raise unless `after` takes and returns what `before` does; fill in the shapes of new nodes."""
    old, new = (list(graph.graph.find_nodes(op="placeholder")) for graph in (before, after))
    if [node.target for node in old] != [node.target for node in new]:
        raise PluginError(f"it changed the placeholders from {_names(old)} to {_names(new)}; keep them")
    for was, now in zip(old, new, strict=True):
        now.meta.setdefault("val", was.meta["val"])
    propagate(after)
    expected, found = (_results(graph) for graph in (before, after))
    if expected != found:
        raise PluginError(f"the outputs were {expected} and are {found}; keep their number, shapes and dtypes")


def _names(nodes: list[fx.Node]) -> str:
    return ", ".join(str(node.target) for node in nodes)


def _results(graph: fx.GraphModule) -> list[Any]:
    (results,) = graph.graph.output_node().args
    assert isinstance(results, (tuple, list))
    values = [node.meta.get("val") if isinstance(node, fx.Node) else node for node in results]
    return [(tuple(v.shape), v.dtype) if isinstance(v, torch.Tensor) else v for v in values]


def _identity(rewrite: Implementation) -> str:
    """What tells a pass from an older version of it: the plugin, its version and the text of its source file."""
    try:
        text = Path(inspect.getfile(inspect.unwrap(rewrite.function))).read_bytes()
    except (OSError, TypeError):
        text = b""
    return f"{rewrite.plugin.name} {rewrite.plugin.distribution} {hashlib.sha256(text).hexdigest()}"
