"""StepReport: what one program of a step is made of, found from its graph alone."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import fx, nn

from cstorch.compiler.flops import flops_of
from cstorch.compiler.loops import LOOP, with_loops
from cstorch.report.kinds import kind_of, name_of
from cstorch.report.memory import Liveness, bytes_made, liveness
from cstorch.report.names import layout_text
from cstorch.tracing.program import Program


@dataclass
class Share:
    """What a kind of operations, or a line of the user's program, has in a step.

    Attributes:
        operations: How many operations.
        flops: Their floating-point operations.
        made_bytes: The bytes of new memory that their results take.
    """

    operations: int = 0
    flops: int = 0
    made_bytes: int = 0

    def add(self, flops: int, made_bytes: int) -> None:
        """Count one more operation."""
        self.operations += 1
        self.flops += flops
        self.made_bytes += made_bytes


@dataclass(frozen=True)
class StepReport:
    """One program that a traced step became.

    Attributes:
        step: The step function's name.
        why: Why it was traced.
        operations: How many operations the graph has, by the operator's name, most frequent first; those of a
            micro-batch once.
        state_tensors: How many tensors the program keeps and changes in place.
        state_bytes: How many bytes they have.
        parameter_bytes: Of these, the bytes of parameters.
        inputs: The tensors that each step is given, such as `float32[8, 16]`.
        input_bytes: Their bytes.
        outputs: How many tensors come back from each step.
        output_bytes: Their bytes.
        flops: Floating-point operations of a step, in matrix products, convolutions and attention.
        kinds: Operations, FLOPs and new memory by kind of operation, the most operations first.
        lines: Likewise by line of the user's program, in the order in which they first act.
        activations: The memory of activations and gradients over the course of a step.
        collectives: The bytes that each kind of exchange among several systems sends.
        guards: What must hold for the program to be used again.
        makes_state: Whether it is the first step of an optimizer, after which another program goes on.
        has_double: Whether it computes with tensors of float64, beyond numbers from the host.
        micro_batch_size: So many samples at a time go through forward and backward; None: the whole batch.
    """

    step: str
    why: str
    operations: dict[str, int]
    state_tensors: int
    state_bytes: int
    parameter_bytes: int
    inputs: list[str]
    input_bytes: int
    outputs: int
    output_bytes: int
    flops: int
    kinds: dict[str, Share]
    lines: dict[str, Share]
    activations: Liveness
    collectives: dict[str, int]
    guards: list[str] = field(default_factory=list)
    makes_state: bool = False
    has_double: bool = False
    micro_batch_size: int | None = None

    @property
    def peak_bytes(self) -> int:
        """The estimate of the most memory that the program takes: state, inputs and activations."""
        return self.state_bytes + self.input_bytes + self.activations.peak

    @property
    def activation_bytes(self) -> int:
        """The estimate of the most memory that activations and gradients take at once."""
        return self.activations.peak

    @classmethod
    def of(cls, program: Program) -> StepReport:
        """The report of a program."""
        graph = program.graph.graph
        placeholders = [node.meta["val"] for node in graph.find_nodes(op="placeholder")]
        state = placeholders[: len(program.state)]
        leaves = placeholders[len(state) : len(state) + len(program.leaves)]
        counts: Counter[str] = Counter()
        kinds: dict[str, Share] = {}
        lines: dict[str, Share] = {}
        collectives: Counter[str] = Counter()
        for node, times in with_loops(program.graph):
            if node.op != "call_function" or node.target is operator.getitem or node.target is LOOP:
                continue
            name, kind, flops, made = name_of(node), kind_of(node), times * flops_of(node), bytes_made(node)
            counts[name] += 1
            kinds.setdefault(kind, Share()).add(flops, made)
            lines.setdefault(node.meta.get("line", "an unknown line"), Share()).add(flops, made)
            if kind == "collectives":
                collectives[name] += _size(node.all_input_nodes[0].meta["val"])
        results = _results(graph)
        return cls(
            step=program.name,
            why=program.why,
            operations=dict(counts.most_common()),
            state_tensors=len(state),
            state_bytes=_total(state),
            parameter_bytes=_total(
                fake for fake, real in zip(state, program.state, strict=True) if isinstance(real, nn.Parameter)
            ),
            inputs=[layout_text(t) for t in leaves],
            input_bytes=_total(leaves),
            outputs=len(results),
            output_bytes=_total(results),
            flops=sum(share.flops for share in kinds.values()),
            kinds=dict(sorted(kinds.items(), key=lambda item: -item[1].operations)),
            lines=lines,
            activations=liveness(program.graph),
            collectives=dict(collectives),
            guards=program.guard_words(),
            makes_state=program.is_first_step,
            has_double=any(_is_double(node) for node, _ in with_loops(program.graph)),
            micro_batch_size=program.micro_batch_size,
        )


def _results(graph: fx.Graph) -> list[torch.Tensor]:
    (values,) = graph.output_node().args
    assert isinstance(values, (tuple, list))
    return [node.meta["val"] for node in values if isinstance(node, fx.Node)]


def _size(tensor: torch.Tensor) -> int:
    return math.prod(tensor.shape) * tensor.dtype.itemsize


def _total(tensors: Iterable[torch.Tensor]) -> int:
    return sum(map(_size, tensors))


def _is_double(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype is torch.float64 and value.dim() > 0
