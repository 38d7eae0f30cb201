"""benchmark_dataloader: its numbers under a clock that the test sets, and what it shows a person."""

import dataclasses
import inspect
import io
import json
import sys
import time

import cstorch
import numpy as np
import pytest
import torch
from cstorch.utils import benchmark
from cstorch.utils.benchmark.measure import Measurement
from cstorch.utils.benchmark.page import write_page
from cstorch.utils.benchmark.report import report
from cstorch.utils.benchmark.utils.dataloader import (
    BatchMetrics,
    BatchSpec,
    BatchSpecOccurence,
    EpochMetrics,
    Metrics,
)
from cstorch.utils.profiler import Activity

MS = 1_000_000


class Clock:
    now = 0

    def __call__(self):
        return self.now

    def passes(self, ms):
        self.now += int(ms * MS)


class Loader:
    """Takes so many ms for each batch."""

    def __init__(self, clock, batch_ms, start_ms=0.0, batch=None):
        self.clock, self.batch_ms, self.start_ms = clock, batch_ms, start_ms
        self.batch = batch or (lambda step: (torch.ones(4, 3), torch.ones(4)))

    def __iter__(self):
        self.clock.passes(self.start_ms)
        return self.batches()

    def batches(self):
        for step, ms in enumerate(self.batch_ms):
            self.clock.passes(ms)
            yield self.batch(step)


def measured(batch_ms, epochs=1, steps=None, frequency=100, build_ms=0, activities=(), **options):
    clock = Clock()

    def input_fn():
        clock.passes(build_ms)
        return Loader(clock, batch_ms, **options)

    return Measurement(input_fn, epochs, steps, frequency, list(activities), clock).run()


def ms(value):
    assert isinstance(value, np.timedelta64)
    return value / np.timedelta64(1, "ns") / MS


def test_times_and_rates_of_a_known_loader():
    metrics = measured([5, 1, 1, 1, 2], epochs=2, frequency=2, build_ms=30, start_ms=10)
    assert ms(metrics.dataloader_build_time) == 30
    assert ms(metrics.total_time) == 40
    assert metrics.total_steps == 10
    assert metrics.global_rate == 250
    assert metrics.global_sample_rate == 1000
    assert not metrics.is_partial
    assert metrics.end_time_ns >= metrics.start_time_ns > 1e18
    first, second = metrics.epoch_metrics
    assert [ms(first.iterator_creation), ms(first.iteration_time), ms(first.total_time)] == [10, 10, 20]
    assert [batch.epoch_step for batch in first.batch_metrics] == [1, 2, 4]
    assert [batch.epoch_step for batch in second.batch_metrics] == [1, 2, 4]
    assert [batch.global_step for batch in second.batch_metrics] == [6, 7, 9]
    assert [batch.local_rate for batch in first.batch_metrics] == [200, 1000, 1000]
    assert first.batch_metrics[0].global_rate == pytest.approx(1 / 0.015)
    assert second.batch_metrics[-1].global_rate == pytest.approx(9 / 0.038)
    times = first.batch_times
    assert [ms(times.first), ms(times.median), ms(times.slowest)] == [5, 1, 2]


def test_bounds_of_epochs_and_steps():
    metrics = measured([1] * 10, epochs=3, steps=4)
    assert [epoch.total_steps for epoch in metrics.epoch_metrics] == [4, 4, 4]
    metrics = measured([1] * 250)
    assert [batch.epoch_step for batch in metrics.epoch_metrics[0].batch_metrics] == [1, 100, 200]


def test_slow_batches_are_the_tail():
    metrics = measured([1] * 50 + [31] * 2 + [1] * 49)
    times = metrics.epoch_metrics[0].batch_times
    assert times.slow_count == 2
    assert ms(times.slow_time) == 60
    assert ms(times.p90) == 1
    assert "2 batches took over twice the median and 37% of the time: the loader stalls now and then" in report(metrics)


def test_batches_that_differ():
    def batch(step):
        return {"x": torch.ones(4 if step < 2 else 3, 3), "name": f"file{step}", "n": np.ones(2)}

    metrics = measured([1, 1, 1], epochs=2, batch=batch)
    assert metrics.global_sample_rate is None
    assert metrics.batch_specs == {
        BatchSpec("{'x': float32[4, 3], 'name': str, 'n': ndarray float64[2]}", 4): BatchSpecOccurence(4, 1, 1, 1),
        BatchSpec("{'x': float32[3, 3], 'name': str, 'n': ndarray float64[2]}", 3): BatchSpecOccurence(2, 1, 3, 3),
    }
    assert "Batches have 2 shapes or structures" in report(metrics)
    assert measured([1], batch=lambda step: torch.tensor(1.0)).global_sample_rate is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.ones(2), torch.ones(2).double()),
        ((torch.ones(2),), [torch.ones(2)]),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}),
        (np.ones(2), np.ones(3)),
        ([torch.ones(2), torch.ones(2)], [[torch.ones(2), torch.ones(2)]]),
        ((1, "a"), ("a", 1)),
    ],
)
def test_what_makes_another_spec(one, other):
    metrics = measured([1, 1, 1], batch=lambda step: [one, one, other][step])
    assert [found.count for found in metrics.batch_specs.values()] == [2, 1]


def test_a_generator_is_asked_for_again():
    calls = []

    def input_fn():
        calls.append(1)
        return (torch.ones(2) for _ in range(3))

    metrics = benchmark.benchmark_dataloader(input_fn, num_epochs=2, print_metrics=False)
    assert metrics.total_steps == 6
    assert len(calls) == 2


def test_a_loader_of_cstorch():
    loader = cstorch.utils.data.DataLoader(lambda: [torch.ones(2, 2)] * 3)
    metrics = benchmark.benchmark_dataloader(lambda: loader, num_epochs=2, print_metrics=False)
    assert (metrics.total_steps, metrics.batch_specs.keys()) == (6, {BatchSpec("float32[2, 2]", 2)})


def test_an_interrupt_returns_what_was_measured(capsys):
    def batch(step):
        if step == 3:
            raise KeyboardInterrupt
        return torch.ones(2)

    def input_fn():
        yield from map(batch, range(9))

    metrics = benchmark.benchmark_dataloader(input_fn, num_epochs=5)
    assert metrics.is_partial
    assert metrics.total_steps == 3
    assert metrics.global_rate > 0
    assert metrics.epoch_metrics[0].end_time_ns > 0
    assert capsys.readouterr().out.startswith("Interrupted: what follows is of the part that was measured.\n")

    def never():
        raise KeyboardInterrupt

    metrics = benchmark.benchmark_dataloader(never)
    assert metrics.is_partial
    assert metrics.total_steps == 0
    assert "gave no batch" in capsys.readouterr().out


def test_an_error_of_the_loader_surfaces():
    def input_fn():
        yield torch.ones(1)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        benchmark.benchmark_dataloader(input_fn)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"input_fn": [1]}, TypeError, "got a list, expected a function that makes a dataloader"),
        ({"input_fn": lambda: 3}, TypeError, "input_fn returned a int, expected a dataloader"),
        ({"num_epochs": 0}, ValueError, "num_epochs is 0, expected an int of at least 1"),
        ({"steps_per_epoch": 2.5}, ValueError, "steps_per_epoch is 2.5, expected"),
        ({"sampling_frequency": True}, ValueError, "sampling_frequency is True, expected"),
        (
            {"profile_activities": ["disk"]},
            ValueError,
            "no profiler activity 'disk'; registered are: .*memory, cpu, io",
        ),
    ],
)
def test_what_is_refused(options, kind, message):
    with pytest.raises(kind, match=message):
        benchmark.benchmark_dataloader(**{"input_fn": lambda: [1], "print_metrics": False, **options})


def test_activities_by_name():
    class Counts(Activity):
        value = 0

        @classmethod
        def name(cls):
            return "counts"

        def update(self, batch_size):
            pass

        def compute(self):
            self.value += 1
            return self.value

    class Plugin:
        @cstorch.plugins.hookimpl
        def cstorch_register_profiler_activities(self, registry):
            registry.register(Counts)

    cstorch.plugins.register(Plugin(), "counting")
    try:
        metrics = measured([1] * 6, frequency=3, activities=["counts", "memory", "cpu", "io"])
    finally:
        cstorch.plugins.unregister("counting")
    sampled = [batch.profile_activities for batch in metrics.epoch_metrics[0].batch_metrics]
    assert [values["counts"] for values in sampled] == [1, 2, 3]
    assert 10 < sampled[0]["memory"]["process_mib"] <= sampled[0]["memory"]["process_peak_mib"]
    assert "counts " in report(metrics)
    json.loads(metrics.to_json())


def test_a_run_takes_the_same_activities():
    loader = cstorch.utils.data.DataLoader(lambda: [torch.ones(2)] * 2)
    run = cstorch.utils.data.DataExecutor(loader, profiler_activities=["memory", "io"])
    assert [batch.shape for batch in run] == [(2,), (2,)]
    assert run.profiler.memory["process_mib"] > 10


def test_activities_see_what_the_process_does(tmp_path):
    from cstorch.utils.process_activities import ProcessCpu, ProcessIo, ProcessMemory

    memory, cpu, inout = ProcessMemory(), ProcessCpu(), ProcessIo()
    before = memory.compute()["process_mib"]
    kept = bytearray(b"x") * (64 << 20)
    assert memory.compute()["process_mib"] - before > 50
    (tmp_path / "file").write_bytes(kept[: 8 << 20])
    assert inout.compute()["written_calls_mib"] >= 8
    assert inout.compute()["written_calls_mib"] < 1
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    assert 0.05 < cpu.compute()["process_cores"] < 64


def test_activities_count_children():
    import subprocess

    from cstorch.utils.process_activities import ProcessMemory

    child = subprocess.Popen([sys.executable, "-c", "print(); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        assert ProcessMemory().compute()["children_mib"] > 1
    finally:
        child.communicate(b"\n")


def test_the_report_begins_with_the_conclusion():
    text = report(measured([5, 1, 1, 1, 2], epochs=2, build_ms=30, start_ms=10))
    lines = text.splitlines()
    assert lines[0] == "250.0 steps/s, 1000.0 samples/s over 10 steps in 40.00 ms."
    assert lines[1].startswith("Fast enough for training steps that take 1.25 ms or longer")
    assert any(line.startswith("Starting epochs takes over a fifth of the time.") for line in lines)
    (build,) = (line for line in lines if line.startswith("  build"))
    assert build.split()[1:4] == ["30.00", "ms", "42.9%"]
    assert "  (float32[4, 3], float32[4]): 10 times, first at step 1 of epoch 1" in lines
    assert text.isascii()
    assert "input_fn itself" in report(measured([1], build_ms=30))
    assert "gave no batch" in report(measured([]))


def test_plain_types_and_files(tmp_path):
    metrics = measured([5, 1, 1, 1, 2], epochs=2, build_ms=30, start_ms=10)
    text = metrics.to_json(tmp_path / "metrics.json")
    found = json.loads((tmp_path / "metrics.json").read_text())
    assert json.loads(text) == found == metrics.to_dict()
    assert found["dataloader_build_time"] == 0.03
    assert found["total_steps"] == 10
    assert found["epoch_metrics"][0]["total_time"] == 0.02
    assert found["batch_specs"][0]["count"] == 10
    write_page(metrics, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<circle") == 2
    assert "250.0 steps/s" in page
    write_page(Metrics(), tmp_path / "empty.html")
    assert "No batch was sampled" in (tmp_path / "empty.html").read_text()


def test_fields_and_defaults_are_those_of_the_api():
    parameters = inspect.signature(benchmark.benchmark_dataloader).parameters
    assert {name: p.default for name, p in parameters.items() if name != "input_fn"} == {
        "num_epochs": None,
        "steps_per_epoch": None,
        "sampling_frequency": None,
        "profile_activities": None,
        "print_metrics": True,
    }
    expected = {
        Metrics: "dataloader_build_time epoch_metrics batch_specs total_time global_rate is_partial start_time_ns "
        "end_time_ns",
        EpochMetrics: "iterator_creation iteration_time total_steps batch_metrics start_time_ns end_time_ns",
        BatchMetrics: "epoch_step global_step local_rate global_rate profile_activities sampling_time_ns",
    }
    for kind, names in expected.items():
        assert [f.name for f in dataclasses.fields(kind)][: len(names.split())] == names.split()
    empty = Metrics()
    assert (empty.global_rate, empty.is_partial, empty.end_time_ns, empty.total_steps) == (0.0, True, 0, 0)
    assert empty.total_time == np.timedelta64(0, "ns")
    assert empty.global_sample_rate is None
    assert BatchMetrics(1, 1, 1.0, 1.0).profile_activities == {}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("length", "shown"),
    [(None, "epoch 1 of 2, step "), (10_000, "[                              ]   0%  epoch 1 of 2, step ")],
)
def test_progress_is_shown_on_a_terminal_only(length, shown, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()

    class Slow:
        def __iter__(self):
            deadline = time.monotonic() + 10
            while shown not in stream.getvalue() and time.monotonic() < deadline:
                time.sleep(0.01)
                yield torch.ones(1)

        def __len__(self):
            if length is None:
                raise TypeError("no length")
            return length

    Measurement(Slow, 2, None, 100, [], stream=stream).run()
    assert shown in stream.getvalue()
    assert "steps/s" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[2K")
