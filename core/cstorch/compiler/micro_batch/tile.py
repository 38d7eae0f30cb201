"""Tries a program in micro-batches of different sizes."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter

import torch
from torch import fx

from cstorch._torch_private.functionalize import functional
from cstorch.compiler.micro_batch.analysis import Analysis
from cstorch.compiler.micro_batch.labels import Along
from cstorch.compiler.micro_batch.loop import with_loop
from cstorch.compiler.micro_batch.plain import say_plainly
from cstorch.errors import MicroBatchError
from cstorch.report.kinds import name_of
from cstorch.tracing.program import Program


class Tiles:
    """The micro-batches of a program.

    Args:
        program: A traced step.

    Attributes:
        batch: So many samples are in the batch: the first dimension of most of its tensors. 0 when there are none.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        places = list(program.graph.graph.find_nodes(op="placeholder"))
        self._leaves = range(len(program.state), len(program.state) + len(program.leaves))
        sizes = Counter(size for i in self._leaves if (size := _rows(places[i].meta["val"])))
        self.batch = sizes.most_common(1)[0][0] if sizes else 0

    @property
    def sizes(self) -> list[int]:
        """The sizes that divide the batch, the largest first, which is the whole batch."""
        return [size for size in range(self.batch, 0, -1) if self.batch % size == 0]

    @functools.cached_property
    def _graph(self) -> fx.GraphModule:
        graph = functional(self._program.graph)
        say_plainly(graph.graph)
        return graph

    def program(self, size: int) -> Program:
        """The program in micro-batches of `size` samples.

        Raises:
            MicroBatchError: it cannot be run so; what keeps it is named with the user's line.
        """
        name = self._program.name
        if size >= self.batch:
            return self._program
        if self.batch % size:
            raise MicroBatchError(
                f"the step {name!r} has a batch of {self.batch} samples, which cannot be divided into micro-batches "
                f"of cstorch.backends.csx.performance.micro_batch_size = {size}. Take a size that divides the batch, "
                'such as {}, "auto" or None; and drop_last=True for the last batch.'.format(
                    ", ".join(map(str, self.sizes[1:4]))
                )
            )
        places = list(self._graph.graph.find_nodes(op="placeholder"))
        leaves = [places[i] for i in self._leaves if (rows := _rows(places[i].meta["val"])) and rows % self.batch == 0]
        state = places[: len(self._program.state)]
        gradients = [index for _, index in self._program.gradients.kept]
        analysis = Analysis(self._graph.graph, leaves, state, gradients, self.batch // size)
        if analysis.obstacle is not None:
            raise MicroBatchError(_words(name, size, analysis, analysis.obstacle))
        if not any(isinstance(label, Along) for node, label in analysis.labels.items() if node not in analysis.early):
            return self._program
        return dataclasses.replace(self._program, graph=with_loop(analysis), micro_batch_size=size)


def _rows(value: torch.Tensor) -> int:
    return int(value.shape[0]) if value.dim() else 0


def _words(name: str, size: int, analysis: Analysis, node: fx.Node) -> str:
    values = [source.meta["val"] for source in node.all_input_nodes]
    shapes = [tuple(value.shape) for value in values if isinstance(value, torch.Tensor)]
    return (
        f"the step {name!r} cannot run in micro-batches of {size} samples "
        f"(cstorch.backends.csx.performance.micro_batch_size): {name_of(node)} of {', '.join(map(str, shapes))} at "
        f"{node.meta.get('line', 'an unknown line')} {analysis.why(node)}, so the result might be another one. Set the "
        'flag to None or "auto", or change this line; in place of batch norm take group norm or layer norm.'
    )
