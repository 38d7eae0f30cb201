"""Gives copies that a program returns memory of their own: Inductor would return views of what they are copies of.

Of `m[:3].clone(), m[1:].clone()` it returns two views of one buffer, so that a change of the one, by the host, would
change the other. The operator `cstorch::own` is a copy that stays one.
"""

from __future__ import annotations

import torch
from torch import fx

aten = torch.ops.aten

_library = torch.library.Library("cstorch", "FRAGMENT")
_library.define("own(Tensor x) -> Tensor")
_library.impl("own", lambda x: x.clone(), "CompositeExplicitAutograd")

_COPIES = {aten.clone.default, aten._to_copy.default, aten.cat.default}


def own_outputs(graph: fx.GraphModule) -> fx.GraphModule:
    """Insert `cstorch::own` behind each copy that the graph returns.

    Args:
        graph: A traced graph. It is changed.
    """
    (output,) = graph.graph.find_nodes(op="output")
    for node in dict.fromkeys(output.args[0]):
        if isinstance(node, fx.Node) and node.target in _COPIES:
            with graph.graph.inserting_after(node):
                own = graph.graph.call_function(torch.ops.cstorch.own.default, (node,))
            own.meta["val"] = node.meta["val"]
            output.replace_input_with(node, own)
    graph.recompile()
    return graph
