"""Holds one trace to the rules: what its calls, its program and its surroundings break."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from cstorch.compiled_module import CompiledModule
from cstorch.constraints.calls import Calls
from cstorch.constraints.late_state import late_state
from cstorch.constraints.report import report
from cstorch.constraints.rule import RULES, Finding
from cstorch.device import CsxTensor
from cstorch.tracing import nest
from cstorch.tracing.context import context
from cstorch.tracing.gradients import GradientOf
from cstorch.tracing.optimizer_binding import OptimizerBinding
from cstorch.tracing.program import Program, ScalarSlot
from cstorch.tracing.scalars import is_number
from cstorch.tracing.surroundings import Holder
from cstorch.where import user_line

_NORMS = ("native_layer_norm", "native_group_norm", "native_batch_norm", "_fused_rms_norm", "native_batch_norm_legit")


class Watch:
    """What a trace breaks, from its start to its program.

    Args:
        name: The step's name.
        why: Why the step needs another program than it has, where it has one.
    """

    def __init__(self, name: str, why: str | None) -> None:
        self._name = name
        self._found: list[Finding] = []
        if why is not None:
            rule = "dynamic-shape" if "a tensor of shape" in why else "static-graph"
            self._add(rule, user_line(), f"the step {name!r} is traced again: {why}")
        if context.iteration is None:
            self._add(
                "batch-outside-executor", user_line(), f"the step {name!r} is called outside a DataExecutor's loop"
            )

    def _add(self, rule: str, line: str | None, detail: str) -> None:
        self._found.append(Finding(RULES[rule], line, detail))

    @contextlib.contextmanager
    def calls(self) -> Iterator[None]:
        """Within, the step's Python runs."""
        hook = register_module_forward_pre_hook(self._called)
        try:
            with Calls(self._name, self._found):
                yield
        finally:
            hook.remove()

    def _called(self, module: nn.Module, args: Any) -> None:
        if not any(module is known for known in context.backend.modules):
            return
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == nn.modules.module.__file__:
            frame = frame.f_back  # type: ignore[assignment]
        if frame is not None and frame.f_code is not CompiledModule.__call__.__code__:
            self._add("uncompiled-model", user_line(), f"{type(module).__name__} in the step {self._name!r}")

    def finish(self, program: Program) -> None:
        """Report what was found, in the trace and in its program."""
        report([*self._found, *check_program(program)])


def check_program(program: Program) -> Iterator[Finding]:
    """What a traced program breaks, whether or not its trace was watched."""
    nodes = program.graph.graph
    inputs = nodes.find_nodes(op="placeholder")
    state, leaves = inputs[: len(program.state)], inputs[len(program.state) :][: len(program.leaves)]
    (output,) = nodes.find_nodes(op="output")
    step = f"the step {program.name!r}"
    if not output.args[0]:
        yield Finding(RULES["no-output"], None, step)
    double = next((node for node in nodes.nodes if _is_double(node)), None)
    if double is not None:
        yield Finding(RULES["float64"], _line(double), step)
    for leaf in nest.leaves(program.result):
        if isinstance(leaf, nn.Module):
            yield Finding(RULES["returns-module"], None, f"{step} returns a {type(leaf).__name__}")
    for node, tensor in zip(state, program.state, strict=True):
        if not isinstance(tensor, (CsxTensor, GradientOf)) and tensor.dim() > 0:
            yield Finding(RULES["device-types"], _line(node), f"{step} works on a cpu tensor {tuple(tensor.shape)}")
    sizes = {tuple(node.meta["val"].shape[:1]) for node in leaves}
    if len(sizes) > 1 or () in sizes:
        shapes = ", ".join(str(tuple(node.meta["val"].shape)) for node in leaves)
        yield Finding(RULES["batch-dimension"], None, f"{step} is given tensors of the shapes {shapes}")
    for effect in program.effects:
        holder = getattr(effect.function, "__self__", None)
        if effect.kind == "host" and isinstance(holder, Holder):
            yield Finding(RULES["host-number"], None, f"{holder.path(effect.args[0])} in {step}")
    yield from _optimizers(program, step)
    fed = _depending_on(leaves)
    for node in nodes.nodes:
        if _operator(node) in _NORMS and isinstance(node.args[0], fx.Node) and node.args[0] not in fed:
            yield Finding(RULES["norm-of-weights"], _line(node), f"{_operator(node)} in {step}")


def _optimizers(program: Program, step: str) -> Iterator[Finding]:
    for binding in program.optimizers:
        optimizer = binding.optimizer
        kind = type(optimizer)
        if kind.__module__.startswith("torch.optim"):
            yield Finding(RULES["torch-optimizer"], None, f"{step} uses torch.optim.{kind.__name__}")
        else:
            for rule, keys in (("late-state", late_state(binding)), ("host-number", _numbers(binding))):
                if keys:
                    yield Finding(RULES[rule], None, f"{', '.join(keys)} of {kind.__name__} in {step}")
        if any("initial_lr" in group for group in optimizer.param_groups):  # a scheduler of torch puts it there
            yield Finding(RULES["torch-scheduler"], None, f"{step} uses {kind.__name__} with a scheduler of torch")


def _numbers(binding: OptimizerBinding) -> list[str]:
    """The keys of an optimizer's state that hold a Python number, such as a count of steps."""
    known = [entry for table in binding.optimizer.state.values() for entry in table.items()]
    made = [(birth.key, birth.value) for birth in binding.births]
    return sorted({repr(key) for key, value in [*known, *made] if is_number(value) or isinstance(value, ScalarSlot)})


def _depending_on(leaves: list[fx.Node]) -> set[fx.Node]:
    """Nodes whose value depends on a sample."""
    found: set[fx.Node] = set()
    pending = list(leaves)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(node.users)
    return found


def _operator(node: fx.Node) -> str:
    return str(getattr(node.target, "overloadpacket", "")).removeprefix("aten.")


def _is_double(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype is torch.float64 and value.dim() > 0


def _line(node: fx.Node) -> str | None:
    """The user's line of a node, or of the first that uses it."""
    lines = (n.meta.get("line") for n in (node, *node.users))
    return next((line for line in lines if line is not None), None)
