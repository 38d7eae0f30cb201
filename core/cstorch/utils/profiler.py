"""Rates of a run: how many samples, in which time, how fast now and overall."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class Activity:
    """Something measured over a run. Subclass it and pass the class in `profiler_activities`."""

    @classmethod
    def name(cls) -> str:
        """The attribute of the profiler under which the value is found."""
        raise NotImplementedError

    def update(self, batch_size: int) -> None:
        """A step with that many samples has ended."""
        raise NotImplementedError

    def compute(self) -> Any:
        """The value now."""
        raise NotImplementedError


class RateTracker(Activity):
    """Samples per second, smoothed since it was last asked, and over the whole run.

    Args:
        clock: Seconds; replaced by the tests.
    """

    SMOOTHING = 0.4

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.reset()

    @classmethod
    def name(cls) -> str:
        """`rate_tracker`."""
        return "rate_tracker"

    def reset(self) -> None:
        """Start anew."""
        self._start = self._last_time = self._clock()
        self._samples = self._last_samples = 0
        self._rate = 0.0

    def update(self, batch_size: int) -> None:
        """Count `batch_size` samples."""
        self._samples += batch_size

    @property
    def total_samples(self) -> int:
        """Samples so far."""
        return self._samples

    @property
    def total_time(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._start

    @property
    def global_rate(self) -> float:
        """Samples per second since the start."""
        elapsed = self.total_time
        return self._samples / elapsed if elapsed > 0 else 0.0

    @property
    def rate(self) -> float:
        """Samples per second since this was last asked, smoothed with the rate before."""
        now = self._clock()
        elapsed, samples = now - self._last_time, self._samples - self._last_samples
        if elapsed > 0 and samples > 0:
            local = samples / elapsed
            first = self._last_samples == 0
            self._rate = local if first else self.SMOOTHING * local + (1 - self.SMOOTHING) * self._rate
            self._last_time, self._last_samples = now, self._samples
        return self._rate

    def compute(self) -> dict[str, float]:
        """All of the above."""
        return {
            "total_samples": self.total_samples,
            "total_time": self.total_time,
            "rate": self.rate,
            "global_rate": self.global_rate,
            "samples_per_sec": self.global_rate,
        }


def _class_of(activity: Any) -> Any:
    if not isinstance(activity, str):
        return activity
    from cstorch import plugins  # loaded on first use

    return plugins.activity(activity)


class Profiler:
    """The activities of one run, each an attribute by its name.

    Args:
        activities: Activity classes, or names of those that plugins register, beside the rate tracker. None: the
            rate tracker alone; an empty list: none.

    Raises:
        TypeError: something that is neither.
        ValueError: a name that no plugin registers, or two activities of one name.
    """

    def __init__(self, activities: list[Any] | None = None) -> None:
        self._activities: dict[str, Activity] = {}
        if activities is None or activities:
            self._activities[RateTracker.name()] = RateTracker()
        for kind in map(_class_of, activities or ()):
            if not (isinstance(kind, type) and issubclass(kind, Activity)):
                raise TypeError(
                    f"profiler_activities holds {kind!r}, expected subclasses of Activity or names of registered ones."
                )
            if kind.name() in self._activities:
                raise ValueError(f"two profiler activities have the name {kind.name()!r}.")
            self._activities[kind.name()] = kind()

    def __bool__(self) -> bool:
        return bool(self._activities)

    def add(self, batch_size: int) -> None:
        """A step with that many samples has ended."""
        for activity in self._activities.values():
            activity.update(batch_size)

    def compute(self) -> dict[str, Any]:
        """The values of all activities, those of the rate tracker unpacked."""
        found: dict[str, Any] = {}
        for name, activity in self._activities.items():
            value = activity.compute()
            found.update(value) if isinstance(activity, RateTracker) else found.update({name: value})
        return found

    def __getattr__(self, name: str) -> Any:
        activities = self.__dict__.get("_activities", {})
        if name in activities:
            activity = activities[name]
            return activity if isinstance(activity, RateTracker) else activity.compute()
        raise AttributeError(f"no profiler activity {name!r}; there are {', '.join(activities) or 'none'}.")
