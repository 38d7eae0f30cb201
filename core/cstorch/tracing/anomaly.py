"""`torch.autograd.detect_anomaly` around a traced step: nan in a gradient is found after the run that makes it.

Backward of the trace has no values. Each function of it is watched instead, and whether it returned nan becomes an
output of the program; a run raises what PyTorch raises, with the line of the forward call.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from cstorch._torch_private.backward import around_engine
from cstorch.tracing.context import context
from cstorch.where import is_library


def looks_for_nan() -> bool:
    """Whether PyTorch has been asked to look for nan in backward."""
    return torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()


@contextlib.contextmanager
def looking_for_nan() -> Iterator[None]:
    """Within, each backward pass of the step that is being traced is one whose runs are looked at, where asked for."""
    if not looks_for_nan():
        yield
        return
    with torch.autograd.set_detect_anomaly(True, check_nan=False), around_engine(_watched):
        yield


@contextlib.contextmanager
def _watched(outputs: Any) -> Iterator[None]:
    flags: list[torch.Tensor] = []
    wheres: list[tuple[str, int, str]] = []

    def look(name: str, lines: str, gradients: Any, _: Any) -> None:
        for index, gradient in enumerate(gradients):
            if isinstance(gradient, torch.Tensor) and gradient.is_floating_point():
                with torch.no_grad():
                    flags.append(gradient.isnan().any())
                wheres.append((name, index, lines))

    handles = [node.register_hook(functools.partial(look, node.name(), _lines(node))) for node in _nodes(outputs)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if flags and context.recording is not None:
        context.recording.add_effect("host", functools.partial(_report, wheres), (torch.stack(flags),), {})


def _nodes(outputs: Any) -> list[Any]:
    """The functions that backward from these tensors may run."""
    found: dict[Any, None] = {}
    waiting = [tensor.grad_fn for tensor in outputs]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found[node] = None
            waiting += [following for following, _ in node.next_functions]
    return list(found)


def _lines(node: Any) -> str:
    """Where the user called what `node` is the backward of, as lines of a traceback."""
    frames = [frame for frame in node.metadata.get("traceback_", ()) if '"' in frame]
    return "".join(frame for frame in frames if not is_library(frame.split('"')[1]))


def _report(wheres: list[tuple[str, int, str]], found: torch.Tensor) -> None:
    for (name, index, lines), is_nan in zip(wheres, found.tolist(), strict=True):
        if is_nan:
            said = f"Error detected in {name}. Traceback of forward call that caused the error:\n{lines}"
            warnings.warn(said, stacklevel=2)
            where = lines.strip().splitlines()[-2:]
            raise RuntimeError(
                f"Function {name!r} returned nan values in its {index}th output. It is the backward of the call at "
                f"{' '.join(line.strip() for line in where) or 'an unknown line'}. On csx a step is looked at after "
                "its run, so the weights have been updated with the nan."
            )
