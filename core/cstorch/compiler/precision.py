"""The graph pass behind `csx.precision.optimization_level`: in which precision matrix products take their inputs."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from cstorch._torch_private.tracing import propagate
from cstorch.compiler.passes import copy_graph
from cstorch.tracing.program import Program

aten = torch.ops.aten

STRICT = "csx.precision.optimization_level = 0"
"""In `Program.passes`: operations keep the order and the form that eager PyTorch gives them."""

_LOWERED = "csx.precision.optimization_level = 2"

_FACTORS: dict[Any, tuple[int, ...]] = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.mv.default: (0, 1),
    aten.dot.default: (0, 1),
    aten.vdot.default: (0, 1),
    aten._trilinear.default: (0, 1, 2),
    aten.addmm.default: (1, 2),
    aten.addmv.default: (1, 2),
    aten.addmm_.default: (1, 2),
    aten.addmv_.default: (1, 2),
    aten.addbmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
    aten.baddbmm_.default: (1, 2),
    aten.linear.default: (0, 1),
    aten.matmul.default: (0, 1),
    aten.convolution.default: (0, 1),
    aten.convolution_backward.default: (0, 1, 2),
    aten._scaled_dot_product_flash_attention_for_cpu.default: (0, 1, 2),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: (0, 1, 2, 3),
}
"""The arguments that are multiplied with each other; what is added to the product keeps its precision."""


def set_precision(program: Program, level: int) -> Program:
    """`program` at an optimization level; itself at level 1.

    Args:
        program: A traced step.
        level: 0, 1 or 2, as `csx.precision` says.
    """
    if level == 1:
        return program
    if level == 0:
        return dataclasses.replace(program, passes=(*program.passes, STRICT))
    return dataclasses.replace(program, graph=_lowered(program.graph), passes=(*program.passes, _LOWERED))


def _lowered(graph: fx.GraphModule) -> fx.GraphModule:
    """A copy of `graph` whose matrix products and convolutions take bfloat16 values.

    Those of an optimizer, and those recorded within `cstorch.pol` at level 0 or 1, stay as they are.

    The values are rounded to bfloat16 and multiplied and added up in float32. They are rounded at each use, since
    weights may change between two of them; the compiler finds those that are the same.
    """
    graph = copy_graph(graph)
    for node in list(graph.graph.nodes):
        if node.meta.get("in_optimizer") or node.meta.get("pol") in (0, 1):
            continue
        for position in _FACTORS.get(node.target, ()):
            value = node.args[position]
            if value.meta["val"].dtype != torch.float32:
                continue
            with graph.graph.inserting_before(node):
                rounded = value
                for dtype in (torch.bfloat16, torch.float32):
                    rounded = graph.graph.call_function(aten._to_copy.default, (rounded,), {"dtype": dtype})
                    rounded.meta["line"] = node.meta.get("line")
            node.update_arg(position, rounded)
    graph.recompile()
    propagate(graph)
    return graph
