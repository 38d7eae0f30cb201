"""Schedule and Range, against a plain reading of their definition."""

import dataclasses
import itertools

import cstorch
import pytest
from cstorch.utils.data import DataExecutor, DataLoader, Schedule
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
    for i in range(70):
        assert made.next_immediate_step(i) == min((s for s in expected if s >= i), default=None)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.integers(1, 3), st.booleans()), max_size=5),
    st.randoms(),
)
def test_a_schedule_joins_ranges_and_single_steps(parts, source):
    items, expected, at = [], [], 0
    for gap, length, step, include_last in parts:
        start, at = at + gap, at + gap + length
        items.append(start if length == 1 and include_last else Range(start, at, step, include_last))
        expected += sorted({*range(start, at, step), *([at - 1] if include_last else [])})
    source.shuffle(items)
    schedule = Schedule(items)
    assert list(schedule) == expected
    assert len(schedule) == len(expected)
    assert [i for i in range(at + 5) if schedule.match(i)] == expected
    for i in range(at + 5):
        assert schedule.next_immediate_step(i) == min((s for s in expected if s >= i), default=None)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)), min_size=2, max_size=4))
def test_ranges_are_refused_just_when_they_overlap(parts):
    covered = [set(range(start, start + length)) for start, length in parts]
    overlap = any(a & b for a, b in itertools.combinations(covered, 2))
    ranges = [Range(start, start + length, 7) for start, length in parts]  # their steps need not meet
    if overlap:
        with pytest.raises(ValueError, match="overlap"):
            Schedule(ranges)
    else:
        assert len(Schedule(ranges)) == len(parts)


@given(st.integers(1, 60), st.integers(1, 60), st.booleans())
def test_an_executor_takes_a_checkpoint_at_just_these_steps(steps, every, as_schedule):
    with cstorch.backend("CPU"):
        when = Schedule([Range(every - 1, every + 100, every)]) if as_schedule else every
        executor = DataExecutor(DataLoader(list), num_steps=steps, checkpoint_steps=when)
        found = [i for i in range(steps) if executor.checkpoint_schedule.match(i)]
        expected = set(range(every - 1, steps, every)) | (set() if as_schedule else {steps - 1})
        assert found == sorted(expected)


def test_ranges_of_any_size_are_quick():
    schedule = Schedule([Range(5, 10**12, 3), 10**13])
    assert len(schedule) == len(range(5, 10**12, 3)) + 1
    assert schedule.next_immediate_step(10**11) == 10**11 + (5 - 10**11) % 3
    assert schedule.next_immediate_step(10**12) == 10**13
    assert not schedule.match(10**12)


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
