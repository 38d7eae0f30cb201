"""Which state of an optimizer a step makes although nothing would have made it before."""

from __future__ import annotations

from collections import defaultdict

import torch

from cstorch.device import lazy
from cstorch.tracing.optimizer_binding import OptimizerBinding
from cstorch.tracing.optimizer_state import Snapshot


def late_state(binding: OptimizerBinding) -> list[str]:
    """The keys of state tensors that the step made and the optimizer's `preinitialize` does not.

    Args:
        binding: An optimizer of a program.
    """
    early = _preinitialized(binding.optimizer) if binding.late else set()
    return sorted({repr(key) for parameter, key in binding.late if (parameter, key) not in early})


def _preinitialized(optimizer: torch.optim.Optimizer) -> set[tuple[int, str]]:
    """What `preinitialize` would have made, by the parameter's id and key; the optimizer is left as it was."""
    preinitialize = getattr(optimizer, "preinitialize", None)
    if preinitialize is None:
        return set()
    before = Snapshot(optimizer)
    optimizer.state = defaultdict(dict)
    try:
        with lazy.recording(), torch.random.fork_rng(devices=[]):  # nothing of it is needed
            preinitialize()
        return {(id(p), key) for p, table in optimizer.state.items() for key in table}
    finally:
        before.restore()
