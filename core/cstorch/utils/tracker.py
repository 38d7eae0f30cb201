"""A counter with rates for programs that keep their own (`cerebras.pytorch.utils.tracker`)."""

from __future__ import annotations

import time
from collections.abc import Callable

from cstorch.utils import profiler


class RateTracker:
    """Counts, and says how many a second, smoothed since that was last asked, and overall.

    Args:
        clock: Seconds; replaced by the tests.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._rates = profiler.RateTracker(clock)

    def add(self, count: int) -> None:
        """Count so many more."""
        self._rates.update(count)

    @property
    def total_count(self) -> int:
        """The count since the last reset."""
        return self._rates.total_samples

    def elapsed_seconds(self) -> float:
        """Seconds since the last reset."""
        return self._rates.total_time

    def rate(self) -> float:
        """Counts a second since this was last asked, smoothed with the rate before."""
        return self._rates.rate

    def global_rate(self) -> float:
        """Counts a second since the last reset."""
        return self._rates.global_rate

    def reset(self) -> None:
        """Start anew, from zero."""
        self._rates.reset()

    def reset_time(self, offset: float = 0.0) -> None:
        """Start the clock anew and keep the count.

        Args:
            offset: Seconds that count as having passed already.
        """
        self._rates.restart_clock(offset)
