"""Times batches from two input workers: ours beside torch's DataLoader.

    python tests/benchmarks/data.py

Every worker yields new tensors over one and the same memory (a tensor sent twice would stay in torch's shared memory,
which no real loader does), and the loop touches one element: what is left is the way between the processes. The two
take turns, round after round, each in a run that starts its workers and is timed from the tenth batch on; medians.
"""

from __future__ import annotations

import itertools
import statistics
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import cstorch
import torch

ROUNDS = 5
WORKERS = 2
WARM = 10
SHAPES = {
    "images (64, 3, 224, 224) float32": ((64, 3, 224, 224), torch.float32, 200),
    "tokens (8, 128) int64": ((8, 128), torch.int64, 10_000),
}


class Templates(torch.utils.data.IterableDataset[Any]):
    """One batch, endlessly, each time as a tensor of its own."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.memory = torch.ones(shape, dtype=dtype).numpy()

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.from_numpy(self.memory)


def timed(batches: Iterable[torch.Tensor], count: int) -> float:
    """Batches a second."""
    stream = iter(batches)
    for batch in itertools.islice(stream, WARM):
        batch.view(-1)[0].item()
    start = time.perf_counter()
    for batch in itertools.islice(stream, count):
        batch.view(-1)[0].item()
    return count / (time.perf_counter() - start)


def theirs(shape: tuple[int, ...], dtype: torch.dtype, count: int) -> float:
    return timed(torch.utils.data.DataLoader(Templates(shape, dtype), batch_size=None, num_workers=WORKERS), count)


def ours(shape: tuple[int, ...], dtype: torch.dtype, count: int) -> float:
    loader = cstorch.utils.data.DataLoader(Templates, shape, dtype)
    return timed(cstorch.utils.data.DataExecutor(loader, num_steps=count + WARM, profiler_activities=[]), count)


def main() -> None:
    warnings.simplefilter("ignore")
    config = cstorch.distributed.ClusterConfig(num_workers_per_csx=WORKERS)
    print(f"{WORKERS} workers; median batches a second of {ROUNDS} rounds")
    print(f"{'':34}{'torch':>12}{'cstorch':>12}{'ratio':>8}")
    with cstorch.backend("CSX", cluster_config=config):
        for name, (shape, dtype, count) in SHAPES.items():
            rates: dict[str, list[float]] = {"torch": [], "cstorch": []}
            for _ in range(ROUNDS):
                rates["torch"].append(theirs(shape, dtype, count // 4))
                rates["cstorch"].append(ours(shape, dtype, count))
            torch_rate, our_rate = (statistics.median(rates[peer]) for peer in ("torch", "cstorch"))
            print(f"{name:34}{torch_rate:12.0f}{our_rate:12.0f}{our_rate / torch_rate:8.1f}", flush=True)


if __name__ == "__main__":
    main()
