"""What benchmark_dataloader itself takes of a step that it does not sample.

    python tests/benchmarks/dataloader_overhead.py

The dataloader is a list of one batch, so a step over it is the loop alone; the limit is 2 us. Median and minimum of
some rounds, in us.
"""

from __future__ import annotations

import statistics
import time

import torch
from cstorch.utils.benchmark import benchmark_dataloader

STEPS, ROUNDS = 200_000, 9
BATCHES = {
    "(tensor, tensor)": (torch.ones(8, 16), torch.ones(8)),
    "{'x': tensor, 'y': tensor}": {"x": torch.ones(8, 16), "y": torch.ones(8)},
    "tensor": torch.ones(8, 16),
}


def bare(batches):
    start = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - start


def measured(batches):
    start = time.perf_counter()
    benchmark_dataloader(lambda: batches, sampling_frequency=10 * STEPS, print_metrics=False)
    return time.perf_counter() - start


def main():
    for name, batch in BATCHES.items():
        batches = [batch] * STEPS
        over = [(measured(batches) - bare(batches)) / STEPS * 1e6 for _ in range(ROUNDS)]
        print(f"{name:28} {statistics.median(over):5.2f} us, at least {min(over):.2f}")


if __name__ == "__main__":
    main()
