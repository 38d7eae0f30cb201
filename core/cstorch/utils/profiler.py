"""Rates of a run: how many samples, in which time, how fast now and overall."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

from cstorch.compiler.flops import peak_flops
from cstorch.errors import words
from cstorch.legacy import warn_of_old


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
    """Samples per second, smoothed since it was last asked, and over the whole run; and how busy the processor was.

    Args:
        clock: Seconds; replaced by the tests.
        flops: The floating-point operations done so far, or None where that is not known.
    """

    SMOOTHING = 0.4

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, flops: Callable[[], int | None] = lambda: None
    ) -> None:
        self._clock, self._flops = clock, flops
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
        self._flops_before = self._flops() or 0

    def restart_clock(self, offset: float = 0.0) -> None:
        """Count time anew, as if `offset` seconds had passed; the samples stay."""
        self._start = self._last_time = self._clock() - offset

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

    @property
    def samples_per_sec(self) -> float:
        """The same as `global_rate`."""
        return self.global_rate

    @property
    def flops_utilization(self) -> float | None:
        """The part of what the processor can do in matrix products that the programs of the run have done.

        None where that is not known: on other backends than CSX, and before the first program has run. What the
        processor can do is measured, once a process.
        """
        done, elapsed = self._flops(), self.total_time
        if done is None or done <= self._flops_before or elapsed <= 0:
            return None
        return (done - self._flops_before) / elapsed / peak_flops()

    def compute(self) -> dict[str, float | None]:
        """All of the above."""
        return {
            "total_samples": self.total_samples,
            "total_time": self.total_time,
            "rate": self.rate,
            "global_rate": self.global_rate,
            "samples_per_sec": self.samples_per_sec,
            "flops_utilization": self.flops_utilization,
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
        flops: The floating-point operations that the backend has done so far, or None where that is not known.

    Raises:
        TypeError: something that is neither.
        ValueError: a name that no plugin registers, one that the profiler itself uses, or two activities of one name.
    """

    def __init__(self, activities: list[Any] | None = None, flops: Callable[[], int | None] = lambda: None) -> None:
        self._activities: dict[str, Activity] = {}
        self._failed: dict[str, str] = {}
        if activities is None or activities:
            self._activities[RateTracker.name()] = RateTracker(flops=flops)
        for activity in activities or ():
            if activity == RateTracker.name() or activity is RateTracker:
                continue  # there already
            kind = _class_of(activity)
            if not (isinstance(kind, type) and issubclass(kind, Activity)):
                raise TypeError(
                    f"profiler_activities holds {kind!r}, expected subclasses of Activity or names of registered ones."
                )
            name = kind.name()
            if name in self._activities:
                raise ValueError(f"two profiler activities have the name {name!r}. Give one another name().")
            if name in _RESERVED or name.startswith("_"):
                raise ValueError(
                    f"the profiler activity {kind.__name__} has the name {name!r}, which the profiler itself uses. "
                    "Return another one from its name()."
                )
            self._activities[name] = kind()

    def __bool__(self) -> bool:
        return bool(self._activities)

    def start(self) -> None:
        """The run begins."""
        for activity in self._activities.values():
            if isinstance(activity, RateTracker):
                activity.reset()

    def add(self, batch_size: int) -> None:
        """A step with that many samples has ended."""
        for name, activity in [*self._activities.items()]:
            try:
                activity.update(batch_size)
            except Exception as error:
                self._leave_out(name, error)

    def compute(self) -> dict[str, Any]:
        """The values of all activities, those of the rate tracker unpacked."""
        found: dict[str, Any] = {}
        for name, activity in [*self._activities.items()]:
            try:
                value = activity.compute()
            except Exception as error:
                self._leave_out(name, error)
                continue
            found.update(value) if isinstance(activity, RateTracker) else found.update({name: value})
        return found

    def _leave_out(self, name: str, error: Exception) -> None:
        """Go on without an activity of a plugin that raised, with one warning; that of the program raises."""
        from cstorch import plugins

        plugin = plugins.owner_of(self._activities[name])
        if plugin is None:
            raise error
        del self._activities[name]
        self._failed[name] = f"the activity {name!r} of {plugin} raised {words(error)}"
        warnings.warn(f"{self._failed[name]}. The run goes on without it; update that plugin.", stacklevel=2)

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("_failed", {}):
            raise AttributeError(f"there is no value: {self._failed[name]}.")
        activities = self.__dict__.get("_activities", {})
        if name in activities:
            activity = activities[name]
            return activity if isinstance(activity, RateTracker) else activity.compute()
        if name in _OLD_METHODS and RateTracker.name() in activities:
            return _OldMethod(name, getattr(activities[RateTracker.name()], name))
        raise AttributeError(f"no profiler activity {name!r}; there are {', '.join(activities) or 'none'}.")


_OLD_METHODS = ("rate", "global_rate", "total_samples", "total_time")


class _OldMethod(float):
    """A number that programs for old releases call: `executor.profiler.rate()`."""

    def __new__(cls, name: str, value: float) -> _OldMethod:
        made = super().__new__(cls, value)
        made._name = name
        return made

    _name: str

    def __call__(self) -> float:
        warn_of_old(f"executor.profiler.{self._name}()", f"Use executor.profiler.rate_tracker.{self._name}.")
        return float(self)


_RESERVED = frozenset([name for kind in (Profiler, RateTracker) for name in vars(kind) if not name.startswith("_")])
"""Attributes of the profiler, and what its rate tracker writes into performance.json."""
