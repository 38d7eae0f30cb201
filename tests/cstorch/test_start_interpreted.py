"""`csx.performance.start_interpreted`: steps are interpreted at once and go on compiled, with eager's results."""

import logging
import os
import signal
import time

import cstorch
import pytest
import torch
import torch.nn.functional as F
from cstorch.appliance.tiered import TieredExecutable, _compile
from cstorch.backends import csx as flags
from cstorch.compiler.native import NativeExecutable
from torch import nn

pytestmark = pytest.mark.native


@pytest.fixture
def tiered(monkeypatch, tmp_path):
    monkeypatch.setitem(flags.performance.__dict__, "start_interpreted", True)
    with cstorch.backend("CSX", compile_dir=tmp_path / "cache") as backend:
        yield backend


def train(device, steps, between=lambda number, step: None):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)

    def step(x):
        optimizer.zero_grad()
        F.mse_loss(model(x), x[:, :2]).backward()
        optimizer.step()

    step = cstorch.trace(step) if device == "csx" else step
    batches = torch.randn(steps, 4, 8)
    for number in range(steps):
        step(batches[number])
        schedule.step()
        between(number, step)
    return [p.detach().cpu() for p in model.parameters()]


def executable_of(step):
    return next(iter(step._programs.values()))[0].executable


def test_steps_are_interpreted_then_compiled_and_equal_eager(tiered, caplog):
    kinds = []

    def between(number, step):
        executable = executable_of(step)
        assert isinstance(executable, TieredExecutable)
        kinds.append(type(executable._now).__name__)
        if number == 2:
            executable.wait(240)

    with caplog.at_level(logging.INFO, "cstorch.compile"):
        found = train("csx", 6, between)
    assert kinds[0] == "InterpretedExecutable"
    assert kinds[3:] == ["CachedExecutable"] * 3
    said = [r.getMessage() for r in caplog.records if "goes on compiled" in r.getMessage()]
    assert said == ["'step' goes on compiled, after 3 interpreted steps"]
    for mine, eager in zip(found, train("cpu", 6), strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-6)

    steps = []
    train("csx", 2, lambda number, step: steps.append(step))  # from the cache: compiled from the start
    assert isinstance(executable_of(steps[0]), NativeExecutable)


def test_a_compile_that_fails_is_said_as_usual_and_the_run_goes_on(tiered):
    steps = []

    def between(number, step):
        steps.append(step)
        if number == 0:
            executable = executable_of(step)
            executable.end.peek()[2][0].send_signal(signal.SIGKILL)
            executable.wait(60)

    with pytest.warns(UserWarning, match=r"'step' could not be compiled \(.*ended with status -9\), so it is interpr"):
        found = train("csx", 3, between)
    assert executable_of(steps[0]).runs == 3
    for mine, eager in zip(found, train("cpu", 3), strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-6)


def test_closing_the_backend_ends_the_compile(tiered):
    steps = []
    train("csx", 1, lambda number, step: steps.append(step))
    executable = executable_of(steps[0])
    process = executable.end.peek()[2][0].pid
    tiered.close()
    executable.wait(60)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail("it is still there")


def test_the_process_says_what_inductor_refuses(monkeypatch, tiered, tmp_path):
    """The compiling process itself, in this one: its answer carries the error, as the warning needs it."""
    import pickle

    from cstorch.appliance.portable import PortableProgram
    from cstorch.appliance.wire import Settings

    def refuse(*args):
        raise NotImplementedError("no lowering for this")

    monkeypatch.setitem(flags.performance.__dict__, "start_interpreted", False)
    monkeypatch.setattr("cstorch.compiler.compile.compile_native", refuse)
    step = cstorch.trace(lambda x: x * 2)
    with pytest.warns(UserWarning, match="no lowering for this"):
        step(torch.ones(2))
    portable = PortableProgram.of(step.programs[0], [torch.ones(2)])
    message = pickle.dumps((portable, tmp_path / "cache" / "k" / "library.so", Settings.now(False), 1.0))
    assert _compile(message) == {"error": "NotImplementedError: no lowering for this", "here": False}
