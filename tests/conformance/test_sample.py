"""A fixed sample of the conformance items, and that the comparison notices what is wrong."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import harness
import module_items
import operator_items
import optimizer_items
from expected import EXPECTED

SOURCES = {"operators": (operator_items, 120), "modules": (module_items, 25), "optimizers": (optimizer_items, 20)}


def sample(database, items, count):
    return [(f"{database}/{name}", run) for name, run in random.Random(5).sample(items, count)]


@pytest.fixture(autouse=True)
def few_samples(monkeypatch, csx):
    monkeypatch.setattr(operator_items, "SAMPLES", 2)


@pytest.mark.parametrize("database", SOURCES)
def test_a_sample_agrees_with_the_cpu_or_is_refused_as_expected(database):
    source, count = SOURCES[database]
    results = [harness.Result(n, *harness.outcome_of(run)) for n, run in sample(database, source.items(), count)]
    surprises = harness.surprises(results, EXPECTED)
    assert not surprises, "\n".join(f"{r.outcome} {r.name}: {r.reason[:300]}" for r in surprises)
    assert sum(r.outcome == "pass" for r in results) > len(results) // 2


@pytest.mark.parametrize("sabotage", ["stale", "disturbed"])
def test_the_comparison_bites(sabotage, monkeypatch):
    names = {"add/float32", "nn.functional.linear/float32", "sum/float32", "mul/float64"}
    chosen = [item for item in operator_items.items() if item[0] in names]
    monkeypatch.setattr(operator_items, "SABOTAGE", sabotage)
    assert len(chosen) == len(names)
    for name, run in chosen:
        assert harness.outcome_of(run)[0] == "wrong", name


def crash():
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    time.sleep(60)


def test_a_crash_and_a_hang_cost_one_item_each(tmp_path):
    items = [("fine", lambda: None), ("crash", crash), ("hang", hang), ("fine too", lambda: None)]
    found = [r.outcome for r in harness.run_all(items, str(tmp_path), limit=5, workers=1)]
    assert found == ["pass", "crashed", "hung", "pass"]
