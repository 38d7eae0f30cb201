"""Schedule and Range, against a plain reading of their definition."""

import dataclasses

import pytest
from cstorch.utils.data import Schedule
from hypothesis import given
from hypothesis import strategies as st

Range = Schedule.Range


@given(st.integers(0, 30), st.integers(1, 30), st.integers(1, 9), st.booleans())
def test_a_range_is_what_python_range_is(start, length, step, include_last):
    made = Range(start, start + length, step, include_last)
    expected = sorted({*range(start, start + length, step), *([start + length - 1] if include_last else [])})
    assert list(made) == expected
    assert len(made) == len(expected)
    assert [i for i in range(70) if made.match(i)] == expected


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 3)), max_size=5))
def test_a_schedule_joins_ranges(parts):
    ranges, at = [], 0
    for gap, length, step in parts:
        ranges.append(Range(at + gap, at + gap + length, step))
        at += gap + length
    schedule = Schedule(list(reversed(ranges)))
    expected = sorted(step for r in ranges for step in r)
    assert list(schedule) == expected
    assert len(schedule) == len(expected)
    assert [i for i in range(at + 5) if schedule.match(i)] == expected
    for i in range(at + 5):
        assert schedule.next_immediate_step(i) == min((s for s in expected if s >= i), default=None)


def test_bad_schedules_are_refused():
    with pytest.raises(ValueError, match="overlap"):
        Schedule([Range(0, 5), Range(4, 8)])
    with pytest.raises(ValueError, match=r"expected Schedule\.Range or int"):
        Schedule(["a"])
    with pytest.raises(ValueError, match="has no steps"):
        Range(3, 3)


def test_it_is_a_dataclass():
    assert dataclasses.asdict(Schedule([Range(0, 2)])) == {
        "intervals": [{"start": 0, "end": 2, "step": 1, "include_last": False}]
    }
