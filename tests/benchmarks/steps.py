"""Times a training step with AdamW: csx through the executor, beside eager PyTorch and torch.compile.

    python tests/benchmarks/steps.py [workload ...]

The peers take turns, round after round, in one process; the table shows the median time of a step. `bare` is the
executable alone, called with the same inputs again and again. `executor us` is what the executor and the traced
step cost by themselves: the same loop with an executable that returns at once. The last column is csx through the
executor against the best peer.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import cstorch
import torch
import torch.nn.functional as F
from training import Training
from workloads import WORKLOADS, Workload

ROUNDS = 9
Steps = Callable[[int], float]
"""Runs so many steps; seconds taken."""


def eager(workload: Workload, fused: bool, compiled: bool) -> Steps:
    torch.manual_seed(0)
    model: Any = workload.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    x, y = workload.batch()
    if compiled:
        model = torch.compile(model)

    def run(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return time.perf_counter() - start

    return run


def csx(workload: Workload) -> tuple[Steps, Steps, Steps]:
    cstorch.backend("CSX")
    training = Training(workload)
    bound = training.bound
    inputs = bound.inputs(list(training.batch), [])

    def run(steps: int) -> float:
        start = time.perf_counter()
        training.run(steps)
        return time.perf_counter() - start

    def bare(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            bound.executable(inputs)
        return time.perf_counter() - start

    def overhead(steps: int) -> float:
        executable = bound.executable
        outputs = executable(inputs)
        bound.executable = lambda inputs: outputs
        try:
            return run(steps)
        finally:
            bound.executable = executable

    return run, bare, overhead


def measure(workload: Workload) -> dict[str, float]:
    """Median milliseconds of a step, by peer."""
    through, bare, overhead = csx(workload)
    peers: dict[str, Steps] = {
        "eager": eager(workload, fused=False, compiled=False),
        "eager fused": eager(workload, fused=True, compiled=False),
        "compile fused": eager(workload, fused=True, compiled=True),
        "csx": through,
        "bare": bare,
        "executor": overhead,
    }
    for run in peers.values():
        run(max(2, workload.steps // 3))
    times: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(ROUNDS):
        for name, run in peers.items():
            steps = 1000 if name == "executor" else workload.steps
            times[name].append(run(steps) / steps * 1e3)
    cstorch.backend().close()
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    warnings.simplefilter("ignore")
    chosen = [w for w in WORKLOADS if not sys.argv[1:] or w.name in sys.argv[1:]]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; median ms a step of {ROUNDS} rounds")
    columns = ("eager", "fused", "compile", "csx", "bare", "executor us", "best peer/csx")
    print(" " * 8 + "".join(f"{name:>14}" for name in columns))
    for workload in chosen:
        t = measure(workload)
        best = min(t["eager"], t["eager fused"], t["compile fused"])
        print(
            f"{workload.name:8}{t['eager']:14.4f}{t['eager fused']:14.4f}{t['compile fused']:14.4f}"
            f"{t['csx']:14.4f}{t['bare']:14.4f}{t['executor'] * 1e3:14.2f}{best / t['csx']:14.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
