"""An activity: how long the fastest and the slowest step of a run took."""

import time

from cstorch.utils.profiler import Activity


class StepTimes(Activity):
    def __init__(self):
        self._last = None
        self._times = []

    @classmethod
    def name(cls):
        return "step_times"

    def update(self, batch_size):
        now = time.perf_counter()
        if self._last is not None:
            self._times.append(now - self._last)
        self._last = now

    def compute(self):
        return {"fastest": min(self._times, default=0.0), "slowest": max(self._times, default=0.0)}
