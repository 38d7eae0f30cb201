"""Schedules that go up and down: Cyclic and OneCycle."""

from __future__ import annotations

import itertools
import math
from typing import Any

from cstorch.optim.closed_forms import Key, _Named
from cstorch.optim.schedule import Values


class CyclicScheduler(_Named):
    """A triangle between `base_val` and `max_val`, over and over, as `torch.optim.lr_scheduler.CyclicLR`."""

    def __init__(
        self, optimizer: Any, base_val: float, max_val: float, step_size_up: int = 2000,
        step_size_down: int | None = None, mode: str = "triangular", gamma: float = 1.0, scale_mode: str = "cycle",
        param_group_tags: Any = None, *, param_group_key: Key = None,
    ) -> None:  # fmt: skip
        if mode not in ("triangular", "triangular2", "exp_range"):
            raise ValueError(f"mode is {mode!r}. Use 'triangular', 'triangular2' or 'exp_range'.")
        if scale_mode not in ("cycle", "iterations"):
            raise ValueError(f"scale_mode is {scale_mode!r}. Use 'cycle' or 'iterations'.")
        self.max_val, self.mode, self.gamma, self.scale_mode = max_val, mode, gamma, scale_mode
        self.step_size_up = step_size_up
        self.step_size_down = step_size_up if step_size_down is None else step_size_down
        super().__init__(optimizer, base_val, None, param_group_tags, param_group_key)

    def _value(self, step: int) -> Values:
        total = self.step_size_up + self.step_size_down
        cycle, place = divmod(step, total)
        up = place / self.step_size_up if place <= self.step_size_up else (total - place) / self.step_size_down
        if self.mode == "triangular":
            height = 1.0
        elif self.mode == "triangular2":
            height = 0.5**cycle
        else:
            height = self.gamma ** (step if self.scale_mode == "iterations" else cycle + 1)
        return self.initial_val + (self.max_val - self.initial_val) * up * height


class OneCycleScheduler(_Named):
    """Up from `initial_val` to `max_val`, then down to initial_val / final_div_factor, in `total_steps` steps.

    With `three_phase` it comes back to `initial_val` as it went, before it goes further down.
    """

    def __init__(
        self, optimizer: Any, initial_val: float, max_val: float, total_steps: int = 1000, pct_start: float = 0.3,
        final_div_factor: float = 1e4, three_phase: bool = False, anneal_strategy: str = "cos",
        param_group_tags: Any = None, *, param_group_key: Key = None,
    ) -> None:  # fmt: skip
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy is {anneal_strategy!r}. Use 'cos' or 'linear'.")
        self.max_val, self.pct_start, self.three_phase = max_val, pct_start, three_phase
        self.total_steps, self.final_div_factor, self.anneal_strategy = total_steps, final_div_factor, anneal_strategy
        super().__init__(optimizer, initial_val, total_steps, param_group_tags, param_group_key)

    def _value(self, step: int) -> Values:
        low, high, least = self.initial_val, self.max_val, self.initial_val / self.final_div_factor
        top, last = self.pct_start * self.total_steps - 1, float(self.total_steps - 1)
        phases = [(0.0, low), (top, high)]
        if self.three_phase:
            phases.append((2 * self.pct_start * self.total_steps - 2, low))
        phases.append((last, least))
        for (begin, start), (end, stop) in itertools.pairwise(phases):
            if step <= end:
                part = (step - begin) / (end - begin)
                if self.anneal_strategy == "cos":
                    return stop + (start - stop) * (1 + math.cos(math.pi * part)) / 2
                return start + (stop - start) * part
        return least
