"""Names the inputs of a program as its user knows them: `layers.0.weight`, `exp_avg of layers.0.weight`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx, nn

from cstorch.tracing.gradients import GradientOf
from cstorch.tracing.program import Program


def layout_text(tensor: torch.Tensor) -> str:
    """`float32[8, 16]`."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def input_names(program: Program, modules: Iterable[nn.Module]) -> dict[fx.Node, str]:
    """What each placeholder of the graph stands for.

    Args:
        program: The program.
        modules: Modules whose parameters and buffers are called by their names.
    """
    known: dict[int, str] = {}
    for module in modules:
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            known.setdefault(id(tensor), name)
    for binding in program.optimizers:
        for parameter, table in binding.optimizer.state.items():
            of = known.get(id(parameter), f"a parameter {layout_text(parameter)}")
            for key, value in table.items() if isinstance(table, dict) else ():
                known.setdefault(id(value), f"{key} of {of}")
    placeholders = program.graph.graph.find_nodes(op="placeholder")
    named = {}
    for position, node in enumerate(placeholders):
        if position < len(program.state):
            named[node] = _state_name(program.state[position], known)
        elif position < len(program.state) + len(program.leaves):
            named[node] = f"tensor argument {program.leaves[position - len(program.state)]}"
        else:
            named[node] = "a number that is fed at each step"
    return named


def _state_name(tensor: Any, known: dict[int, str]) -> str:
    if isinstance(tensor, GradientOf):
        return f"gradient of {known.get(id(tensor.tensor), 'a tensor')}"
    return known.get(id(tensor), "a parameter" if isinstance(tensor, nn.Parameter) else "state")
