"""What a program becomes on CSX, found by tracing it alone: steps, operations, sizes, and what may not travel."""

from __future__ import annotations

import math
import operator
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import fx

from cstorch.compiler.flops import count_flops
from cstorch.constraints.rule import Finding
from cstorch.tracing.context import context
from cstorch.tracing.program import Program
from cstorch.where import is_library, is_ours


@dataclass(frozen=True)
class StepReport:
    """One program that a traced step became.

    Attributes:
        step: The step function's name.
        operations: How many operations the graph has, by the operator's name, most frequent first.
        state_tensors: How many tensors the program keeps and changes in place.
        state_bytes: How many bytes they have.
        inputs: The tensors that each step is given, such as `float32[8, 16]`.
        outputs: How many tensors come back from each step.
        flops: Floating-point operations of a step, in matrix products, convolutions and attention.
    """

    step: str
    operations: dict[str, int]
    state_tensors: int
    state_bytes: int
    inputs: list[str]
    outputs: int
    flops: int

    @classmethod
    def of(cls, program: Program) -> StepReport:
        """The report of a program."""
        nodes = program.graph.graph
        placeholders = [node.meta["val"] for node in nodes.find_nodes(op="placeholder")]
        state = placeholders[: len(program.state)]
        leaves = placeholders[len(state) : len(state) + len(program.leaves)]
        counts = Counter(
            _name(node) for node in nodes.nodes if node.op == "call_function" and node.target is not operator.getitem
        )
        return cls(
            step=program.name,
            operations=dict(counts.most_common()),
            state_tensors=len(state),
            state_bytes=sum(math.prod(t.shape) * t.dtype.itemsize for t in state),
            inputs=[f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in leaves],
            outputs=_outputs(program),
            flops=count_flops(program.graph),
        )


@dataclass
class Validation:
    """Context manager: CSX backends made in it validate only, and the programs that they trace are collected.

    Attributes:
        strict: Whether steps are held to the rules in `cstorch.constraints`.
        broken: What breaks them.
        programs: The programs.
        warnings: What was warned of, once each, with the line.
    """

    strict: bool = False
    broken: list[Finding] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __enter__(self) -> Validation:
        self._catcher = warnings.catch_warnings()
        self._catcher.__enter__()
        warnings.resetwarnings()
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        warnings.showwarning = self._note
        self._before, context.validation = context.validation, self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context.validation = self._before
        self._catcher.__exit__(kind, error, trace)

    def _note(
        self, message: Any, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        said = f"{message} ({filename}:{lineno})"
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename == warnings.__file__:
            frame = frame.f_back
        who = frame.f_code.co_filename
        if said not in self.warnings and (is_ours(who) or not is_library(who)):  # not what PyTorch and Lightning advise
            self.warnings.append(said)

    @property
    def steps(self) -> list[StepReport]:
        """A report of each program."""
        return [StepReport.of(program) for program in self.programs]

    @property
    def findings(self) -> list[str]:
        """What this appliance accepts and another system may not, or what a person may not have meant."""
        found = []
        for step, count in Counter(program.name for program in self.programs).items():
            if count > 1 and not self.strict:
                found.append(
                    f"the step {step!r} becomes {count} programs; a system loads one for a run. Give it batches of "
                    "one shape, for example with drop_last=True, and keep its settings as they are."
                )
        for program in self.programs:
            if not _outputs(program) and not self.strict:
                found.append(
                    f"the step {program.name!r} returns no tensor and gives none to a closure: a system has nothing "
                    "to compute for it. Return the loss."
                )
            if _has_double(program) and not self.strict:
                found.append(
                    f"the step {program.name!r} computes in float64, which no system has. Make its tensors float32."
                )
        return list(dict.fromkeys([*map(str, self.broken), *found, *self.warnings]))


def _outputs(program: Program) -> int:
    """How many tensors come back from each step."""
    (node,) = program.graph.graph.find_nodes(op="output")
    return len(node.args[0])


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "overloadpacket", node.target)).removeprefix("aten.")


def _has_double(program: Program) -> bool:
    """Whether a tensor with elements, not just a number from the host, is of float64."""
    return any(
        isinstance(value, torch.Tensor) and value.dtype is torch.float64 and value.dim() > 0
        for value in (node.meta.get("val") for node in program.graph.graph.nodes)
    )
