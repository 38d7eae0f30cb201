"""Schedule: the steps of a run at which something happens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Range:
    """Steps `start`, `start + step`, ... below `end`, zero-indexed.

    Attributes:
        start: The first step.
        end: The end, exclusive.
        step: The distance between steps, at least 1.
        include_last: Whether `end - 1` belongs to the range in any case.

    Raises:
        ValueError: a range that is empty, or a step below 1.
    """

    start: int
    end: int
    step: int = 1
    include_last: bool = False

    def __post_init__(self) -> None:
        if self.step < 1 or self.start < 0 or self.end <= self.start:
            raise ValueError(
                f"Range(start={self.start}, end={self.end}, step={self.step}) has no steps; expected "
                "0 <= start < end and step >= 1."
            )

    def match(self, step: int) -> bool:
        """Whether `step` belongs to the range."""
        if not self.start <= step < self.end:
            return False
        return (step - self.start) % self.step == 0 or (self.include_last and step == self.end - 1)

    def __iter__(self) -> Iterator[int]:
        yield from range(self.start, self.end, self.step)
        if self._adds_last:
            yield self.end - 1

    def __len__(self) -> int:
        return len(range(self.start, self.end, self.step)) + self._adds_last

    @property
    def _adds_last(self) -> bool:
        return self.include_last and (self.end - 1 - self.start) % self.step != 0

    def next_immediate_step(self, step: int) -> int | None:
        """The first step of the range that is `step` or later; None after the last."""
        if step <= self.start:
            return self.start
        found = step + (self.start - step) % self.step
        if found < self.end:
            return found
        return self.end - 1 if self.include_last and step < self.end else None


@dataclass
class Schedule:
    """Ranges of steps that do not overlap (`cerebras.pytorch.utils.data.utils.Schedule`).

    Attributes:
        intervals: The ranges, or single steps, zero-indexed.

    Raises:
        ValueError: ranges that overlap, or something that is neither a Range nor an int.
    """

    Range = Range

    intervals: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        ranges = []
        for item in self.intervals:
            if isinstance(item, int) and not isinstance(item, bool):
                ranges.append(Range(item, item + 1))
            elif isinstance(item, Range):
                ranges.append(item)
            else:
                raise ValueError(f"a schedule holds {item!r}, expected Schedule.Range or int.")
        ranges.sort(key=lambda r: r.start)
        for earlier, later in itertools.pairwise(ranges):
            if later.start < earlier.end:
                raise ValueError(f"{earlier} and {later} overlap; expected ranges apart from each other.")
        self._ranges = ranges

    def match(self, step: int) -> bool:
        """Whether something happens at `step`, zero-indexed."""
        return any(item.match(step) for item in self._ranges)

    def next_immediate_step(self, step: int) -> int | None:
        """The first step of the schedule that is `step` or later; None after the last."""
        following = (item.next_immediate_step(step) for item in self._ranges)
        return next((found for found in following if found is not None), None)

    def __iter__(self) -> Iterator[int]:
        for item in self._ranges:
            yield from item

    def __len__(self) -> int:
        return sum(len(item) for item in self._ranges)
