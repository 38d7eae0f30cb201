"""The report of a program, and of a run, in lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cstorch.report.entry import Entry
from cstorch.report.step import StepReport
from cstorch.sizes import count_text, flops_text, size_text

_MOST = 8


def step_lines(step: StepReport) -> Iterator[str]:
    """The report of a program, for a terminal."""
    yield step.step
    yield f"  operations  {sum(step.operations.values())}: {_list(f'{n} {c}' for n, c in step.operations.items())}"
    yield f"  FLOPs       {step.flops:,} a step, in matrix products, convolutions and attention"
    for kind, share in step.kinds.items():
        flops = f", {flops_text(share.flops)}" if share.flops else ""
        made = f", {size_text(share.made_bytes)} of results" if share.made_bytes else ""
        yield f"    {kind:<22}{share.operations}{flops}{made}"
    yield f"  state       {count_text(step.state_tensors, 'tensor')}, {size_text(step.state_bytes)}"
    yield f"  parameters  {size_text(step.parameter_bytes)} of the state"
    yield f"  activations {size_text(step.activation_bytes)} at most at once (estimate)"
    yield f"  peak        {size_text(step.peak_bytes)} of memory (estimate)"
    yield f"  inputs      {', '.join(step.inputs) or 'none'}"
    yield f"  outputs     {step.outputs}"
    if step.micro_batch_size is not None:
        yield f"  micro-batch {step.micro_batch_size} samples at a time"
    for name, sent in step.collectives.items():
        yield f"  collective  {name}: {size_text(sent)}"
    if step.why:
        yield f"  traced for  {step.why}"
    yield f"  holds while {_list(step.guards) or 'its arguments are alike'}"


def _list(items: Iterable[str]) -> str:
    """`a, b, c, 4 others`."""
    kinds = list(items)
    if len(kinds) > _MOST:
        kinds[_MOST:] = [f"{len(kinds) - _MOST} others"]
    return ", ".join(kinds)


def entry_lines(entry: Entry) -> Iterator[str]:
    """The report of a program, and how it was compiled."""
    yield from step_lines(entry.report)
    if entry.explored:
        times = (f"{size}: {1000 * seconds:.3g} ms" for size, seconds in entry.explored.items())
        yield f"  explored    micro-batches of {', '.join(times)}"
    yield f"  compiled    {entry.made or 'no'}"
    yield f"  graph       {entry.graph_file}"


def finding_lines(findings: Sequence[str], refused: Sequence[str]) -> Iterator[str]:
    """What was refused, and what another system may not take."""
    for read in refused:
        yield f"refused: {read}"
    for finding in findings:
        yield f"portability: {finding}"
    if not findings:
        yield "portability: nothing was found that another system would not take"


def run_lines(entries: Iterable[Entry], findings: Sequence[str], refused: Sequence[str]) -> Iterator[str]:
    """The report of a run."""
    yield from finding_lines(findings, refused)
    for entry in entries:
        yield ""
        yield from entry_lines(entry)
