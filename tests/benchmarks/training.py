"""Trains a workload on csx, as the benchmarks that time steps do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import cstorch
import torch
import torch.nn.functional as F
from workloads import Workload

FIRST = 3
"""Steps whose losses are compared with those of peers."""


class Training:
    """A workload on the present csx backend, with AdamW, which has taken its first steps.

    Args:
        workload: The workload.

    Attributes:
        batch: The one batch that it trains on.
        step: The traced step.
        bound: Its program.
        losses: The losses of its first steps.
    """

    def __init__(self, workload: Workload) -> None:
        torch.manual_seed(0)
        model = workload.model()
        compiled = cstorch.compile(model, cstorch.backend())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        x, y = workload.batch()
        self.batch = x, (y if len(y) == len(x) else y.view(len(x), -1))  # a row for each sample, to be divided

        @cstorch.trace
        def step(batch: Any) -> torch.Tensor:
            x, y = batch
            loss = F.cross_entropy(compiled(x), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        def batches() -> Iterator[Any]:
            while True:
                yield self.batch

        loader = cstorch.utils.data.DataLoader(batches)
        self.step: Callable[[Any], Any] = step
        self._executor = iter(cstorch.utils.data.DataExecutor(loader, num_steps=10**9))
        self.losses: list[float] = []

        @cstorch.step_closure
        def note(loss: torch.Tensor) -> None:
            self.losses.append(loss.item())

        for _ in range(FIRST):
            note(step(next(self._executor)))
        self.run(1)  # the closures of a step run when the next one begins
        (programs,) = step._programs.values()
        self.bound: Any = programs[0]

    def run(self, steps: int) -> None:
        """Take so many steps."""
        step, executor = self.step, self._executor
        for _ in range(steps):
            step(next(executor))
