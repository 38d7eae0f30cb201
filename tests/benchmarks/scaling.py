"""Times a training step with AdamW on several systems of this host, each with one thread, beside one system with one.

    python tests/benchmarks/scaling.py [workload ...]

The global batch is the same. One and several systems take turns, round after round; the table shows the median time of
a step, how many times as fast several are, and what the controller itself costs a step: all that is not the program,
which waits for the others' gradients in its collectives.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from typing import Any

import cstorch
import torch
from cstorch.distributed import ClusterConfig
from training import Training
from workloads import WORKLOADS, Workload

ROUNDS = 7
COUNTS = (1, 2)


class Timed:
    """An executable that adds up how long it runs."""

    def __init__(self, executable: Any) -> None:
        self._executable, self.seconds = executable, 0.0

    @property
    def runs(self) -> int:
        """How often it has run."""
        return int(self._executable.runs)

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run it."""
        start = time.perf_counter()
        outputs: list[torch.Tensor] = self._executable(inputs)
        self.seconds += time.perf_counter() - start
        return outputs


def seconds(workload: Workload, count: int) -> tuple[float, float]:
    """Seconds a step on so many systems, and those of them that are not the program's."""
    with cstorch.backend("CSX", cluster_config=ClusterConfig(num_csx=count)):
        training = Training(workload)
        training.run(2)
        holder = training.bound if count == 1 else training.bound.executable._loaded
        timed = holder.executable = Timed(holder.executable)
        start = time.perf_counter()
        training.run(workload.steps)
        whole = time.perf_counter() - start
    return whole / workload.steps, (whole - timed.seconds) / workload.steps


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    chosen = [w for w in WORKLOADS if w.name in (sys.argv[1:] or ["gpt-s"])]
    print(f"torch {torch.__version__}, 1 thread a system; median of {ROUNDS} rounds")
    print(" " * 8 + "".join(f"{name:>16}" for name in ("systems", "ms a step", "times as fast", "controller us")))
    for workload in chosen:
        found: dict[int, list[tuple[float, float]]] = {count: [] for count in COUNTS}
        for _ in range(ROUNDS):
            for count in COUNTS:
                found[count].append(seconds(workload, count))
        one = statistics.median(step for step, _ in found[1])
        for count in COUNTS:
            step, own = (statistics.median(times) for times in zip(*found[count], strict=True))
            print(f"{workload.name:8}{count:16}{step * 1e3:16.3f}{one / step:16.2f}{own * 1e6:16.1f}", flush=True)


if __name__ == "__main__":
    main()
