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
import modules
import operators
import optimizers
from expected import EXPECTED

COUNTS = {"operators": 120, "modules": 25, "optimizers": 20}


def sample(database, items, count):
    return [(f"{database}/{name}", run) for name, run in random.Random(5).sample(items, count)]


@pytest.fixture(autouse=True)
def few_samples(monkeypatch, csx):
    monkeypatch.setattr(operators, "SAMPLES", 2)


@pytest.mark.parametrize("source", [operators, modules, optimizers], ids=lambda m: m.__name__)
def test_a_sample_agrees_with_the_cpu_or_is_refused_as_expected(source):
    name = source.__name__
    results = [harness.Result(n, *harness.outcome_of(run)) for n, run in sample(name, source.items(), COUNTS[name])]
    surprises = harness.surprises(results, EXPECTED)
    assert not surprises, "\n".join(f"{r.outcome} {r.name}: {r.reason[:300]}" for r in surprises)
    assert sum(r.outcome == "pass" for r in results) > len(results) // 2


@pytest.mark.parametrize("sabotage", ["stale", "disturbed"])
def test_the_comparison_bites(sabotage, monkeypatch):
    names = {"add/float32", "nn.functional.linear/float32", "sum/float32", "mul/float64"}
    chosen = [item for item in operators.items() if item[0] in names]
    monkeypatch.setattr(operators, "SABOTAGE", sabotage)
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
