"""Keeps images channels last between convolutions: oneDNN's kernels, above all of the way back, are fastest on them.

Inductor computes convolutions channels last, but takes the layout that a graph was traced with, channels first, for the
way back, and would convert every activation and gradient again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from cstorch._torch_private.inductor import force_strides, lay_out_again

_aten = torch.ops.aten


def _is_image(node: object) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.dim() == 4


def keep_channels_last(graph: fx.Graph) -> None:
    """Give convolutions of images their inputs and weights channels last; what they compute is so too, then.

    The outputs keep the strides that they have. A graph that looks at the memory behind a value is left as it is.

    Args:
        graph: A functional graph whose nodes have their fake tensors in `meta["val"]`, as Inductor hands it to its
            passes. It is changed.
    """
    ways = [(_aten.convolution.default, (0, 1)), (_aten.convolution_backward.default, (1, 2))]
    found = [(node, at) for target, at in ways for node in graph.find_nodes(op="call_function", target=target)]
    found = [(node, at) for node, at in found if _is_image(node.args[0])]
    if not found or any(graph.find_nodes(op="call_function", target=_aten.as_strided.default)):
        return
    (output,) = graph.find_nodes(op="output")
    strides = {n: n.meta["val"].stride() for n in output.all_input_nodes if _is_image(n)}

    *_, inputs_end = graph.find_nodes(op="placeholder")
    copies: dict[fx.Node, fx.Node] = {}
    for node, positions in found:
        for at in positions:
            given = node.args[at]
            if not isinstance(given, fx.Node) or given.op != "placeholder":
                continue  # follows what it was computed from
            if given not in copies:
                with graph.inserting_after(inputs_end):
                    last_channels: dict[str, Any] = {"memory_format": torch.channels_last}
                    copies[given] = graph.call_function(_aten.clone.default, (given,), last_channels)
            node.update_arg(at, copies[given])
    lay_out_again(graph)
    for node, before in strides.items():
        if node.op != "placeholder" and node.meta["val"].stride() != before:
            force_strides(graph, node, before)
