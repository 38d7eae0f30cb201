"""Activities of a run: the rates against a clock of our own, floating-point operations against PyTorch's count."""

import json

import cstorch
import pytest
import torch
from cstorch.compiler.flops import peak_flops
from cstorch.utils.data import DataExecutor, DataLoader
from cstorch.utils.profiler import Activity, Profiler, RateTracker
from torch.utils.flop_counter import FlopCounterMode


class Steps(Activity):
    def __init__(self):
        self.steps = 0

    @classmethod
    def name(cls):
        return "steps"

    def update(self, batch_size):
        self.steps += 1

    def compute(self):
        return self.steps


def named(name):
    return type("Named", (Steps,), {"name": classmethod(lambda cls: name)})


def test_rates():
    now, flops = [100.0], [7]
    tracker = RateTracker(lambda: now[0], lambda: flops[0])
    rates = ("total_samples", "total_time", "rate", "global_rate", "samples_per_sec")
    assert tracker.compute() == {**dict.fromkeys(rates, 0), "flops_utilization": None}
    now[0] += 2
    tracker.update(8)
    assert tracker.rate == 4
    assert tracker.rate == 4  # nothing has come since
    now[0] += 1
    tracker.update(8)
    assert tracker.rate == pytest.approx(0.4 * 8 + 0.6 * 4)
    flops[0] += 3 * 10**9
    assert (tracker.total_samples, tracker.total_time) == (16, 3)
    assert tracker.global_rate == tracker.samples_per_sec == pytest.approx(16 / 3)
    assert tracker.flops_utilization == pytest.approx(1e9 / peak_flops())


def test_activities_beside_the_rates(tmp_path):
    with cstorch.backend("CPU", artifact_dir=tmp_path):
        executor = DataExecutor(DataLoader(lambda: [torch.ones(4, 2)] * 3), profiler_activities=[Steps, "rate_tracker"])
        seen = []
        for _ in executor:
            cstorch.step_closure(lambda: seen.append((executor.profiler.steps, executor.profiler.rate_tracker)))()
    assert [(steps, tracker.total_samples) for steps, tracker in seen] == [(1, 12), (2, 12), (3, 12)]
    profile = json.loads((executor.artifact_dir / "performance.json").read_text())
    rates = {"total_samples", "total_time", "rate", "global_rate", "samples_per_sec", "flops_utilization"}
    assert set(profile) == rates | {"steps"}
    assert profile["steps"] == 3
    assert profile["flops_utilization"] is None


@pytest.mark.parametrize(
    ("activities", "error", "message"),
    [
        ([Steps, Steps], ValueError, "two profiler activities have the name 'steps'"),
        ([named("rate_tracker")], ValueError, "two profiler activities have the name 'rate_tracker'"),
        ([named("total_time")], ValueError, "has the name 'total_time', which the profiler itself uses"),
        ([named("compute")], ValueError, "has the name 'compute', which the profiler itself uses"),
        ([Steps()], TypeError, "expected subclasses of Activity or names of registered ones"),
        ([int], TypeError, "expected subclasses of Activity or names of registered ones"),
        (["no such"], ValueError, "there is no profiler activity 'no such'; registered are: "),
    ],
)
def test_what_is_no_activity_is_refused(activities, error, message):
    with pytest.raises(error, match=message):
        Profiler(activities)


def test_an_unknown_activity_names_those_that_there_are():
    with pytest.raises(AttributeError, match="no profiler activity 'speed'; there are rate_tracker, steps"):
        _ = Profiler([Steps]).speed


def test_no_activities():
    with cstorch.backend("CPU"):
        executor = DataExecutor(DataLoader(lambda: [torch.ones(1)]), profiler_activities=[])
        list(executor)
        assert not (executor.artifact_dir / "performance.json").exists()


def test_the_operations_of_a_run_are_those_that_pytorch_counts(csx):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10))
    batch = torch.randn(4, 3, 8, 8)

    def work(model):
        model.zero_grad()
        model(batch).square().mean().backward()

    with FlopCounterMode(display=False) as counter:
        work(model)
    compiled = cstorch.compile(model)
    step = cstorch.trace(lambda: work(compiled))
    for _ in range(2):
        done, executor = csx.flops_done(), DataExecutor(DataLoader(lambda: [batch]), num_steps=3)
        for _ in executor:
            step()
        assert csx.flops_done() - done == 3 * counter.get_total_flops()
        profile = json.loads((executor.artifact_dir / "performance.json").read_text())
        rate = 3 * counter.get_total_flops() / profile["total_time"] / peak_flops()
        assert profile["flops_utilization"] == pytest.approx(rate, rel=0.2)


def test_attention_counts(csx):
    q = torch.randn(2, 4, 10, 8)
    attend = cstorch.trace(lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x))
    attend(q)
    assert csx.flops_done() == 2 * (2 * 2 * 4 * 10 * 10 * 8)
