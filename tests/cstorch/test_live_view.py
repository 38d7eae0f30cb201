"""DataExecutor(progress=True): what a person sees of a run on the terminal."""

import io
import logging
import re
import sys
import time

import cstorch
import pytest
import torch
from cstorch import progress_line
from cstorch.storage.progress import ByteProgress
from cstorch.utils.data.live_view import LiveView


class Terminal(io.StringIO):
    def isatty(self):
        return True


def executor(steps=5, **options):
    loader = cstorch.utils.data.DataLoader(lambda: [torch.full((2, 3), float(i)) for i in range(steps)])
    return cstorch.utils.data.DataExecutor(loader, num_steps=steps, **options)


def step_on(kind, result=lambda loss: loss):
    backend = cstorch.backend(kind)
    model = torch.nn.Linear(3, 1)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.zeros_(model.bias)
    compiled = cstorch.compile(model, backend)

    @cstorch.trace
    def training_step(batch):
        return result(compiled(batch).mean())

    return backend, training_step


@pytest.mark.parametrize("kind", ["CSX", "CPU"])
@pytest.mark.parametrize(
    "result",
    [lambda loss: loss, lambda loss: {"n": loss * 0, "loss": loss}, lambda loss: (torch.ones(2), loss)],
    ids=["loss", "dict", "tuple"],
)
def test_the_line_tells_steps_loss_and_rate(kind, result):
    backend, training_step = step_on(kind, result)
    with backend:
        run = executor(progress=True)
        run._view._clock = lambda: now
        now, lines = 0.0, []
        for batch in run:
            lines.append(run._view.text())
            training_step(batch)
            now += 0.5
        lines.append(run._view.text())
    assert lines[0] == "step 0/5 (0%)  waiting for the first step"
    assert lines[1] == "step 1/5 (20%)  training_step 0"
    assert lines[3] == "step 3/5 (60%)  training_step 6  2.0 steps/s  0:01 left"
    assert lines[5] == "step 5/5 (100%)  training_step 12  2.0 steps/s  0:00 left"


def test_slow_runs_and_a_step_that_returns_nothing():
    backend, training_step = step_on("CSX", lambda loss: None)
    with backend:
        run = executor(steps=10_000, progress=True)
        now = 0.0
        run._view._clock = lambda: now
        for batch in run:
            training_step(batch)
            now += 2.5
            if run.iteration == 2:
                break
            run._view.text()
        assert run._view.text() == "step 2/10000 (0%)  2.5 s/step  6:56:35 left"


def test_checkpoints_are_told(tmp_path, monkeypatch):
    backend, training_step = step_on("CSX")
    with backend:
        run = executor(progress=True, checkpoint_steps=2)
        told = []
        for batch in run:
            training_step(batch)
            told.append(run._view.text())
        assert "checkpoint" not in told[1]
        assert told[2].endswith("checkpoint 2")
        assert told[4].endswith("checkpoint 4")
        monkeypatch.setattr("cstorch.utils.data.live_view.saves_now", lambda: ["/far/a.ckpt"])
        assert run._view.text().endswith("saving a.ckpt")


def test_a_run_is_shown_on_a_terminal_and_wiped_out(monkeypatch, caplog, capsys):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    caplog.set_level(logging.INFO, "cstorch")
    backend, training_step = step_on("CSX")
    with backend:
        for batch in executor(progress=True):
            training_step(batch)
            deadline = time.monotonic() + 10
            while batch[0, 0] == 3 and "step 3/5" not in stream.getvalue() and time.monotonic() < deadline:
                time.sleep(0.01)
    assert re.search(r"\r\x1b\[2Kstep 3/5 \(60%\)  training_step [69]", stream.getvalue())
    assert stream.getvalue().endswith("\r\x1b[2K")
    assert not progress_line.active
    (said,) = (r.getMessage() for r in caplog.records if r.name == "cstorch.data")
    assert re.fullmatch(r"ended after 5 of 5 steps in \d+\.\d s, training_step 12", said)
    assert capsys.readouterr().out == ""


def test_runs_that_do_not_end_are_told(caplog):
    caplog.set_level(logging.INFO, "cstorch.data")
    backend, training_step = step_on("CSX")
    with backend:
        for batch in executor(progress=True):
            training_step(batch)
            if batch[0, 0] == 2:
                break

        def broken():
            yield torch.ones(2, 3)
            raise OSError("disk")

        loader = cstorch.utils.data.DataLoader(broken)
        with pytest.raises(OSError, match="disk"):
            for batch in cstorch.utils.data.DataExecutor(loader, num_steps=3, progress=True):
                training_step(batch)
    said = [r.getMessage() for r in caplog.records if r.name == "cstorch.data"]
    assert said[0].startswith("left after 2 of 5 steps in ")
    assert said[-1].startswith("failed (OSError) after 1 of 3 steps in ")
    assert cstorch.tracing.context.context.view is None


@pytest.mark.parametrize(("options", "terminal"), [({}, True), ({"progress": True}, False)])
def test_silent_otherwise(monkeypatch, options, terminal):
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    backend, training_step = step_on("CSX")
    with backend:
        for batch in executor(**options):
            training_step(batch)
            time.sleep(0.06)
    assert stream.getvalue() == ""


def test_the_innermost_line_has_the_terminal():
    stream, wide = Terminal(), "x" * 1000
    now = 0.0
    with progress_line.ProgressLine(lambda: wide, stream):
        deadline = time.monotonic() + 10
        while not stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert 10 < stream.getvalue().count("x") < 1000
        with ByteProgress("saving a.ckpt", 10, stream, clock=lambda: now) as progress:
            now = 2.0
            progress(5)
            before = stream.getvalue()
            time.sleep(0.5)
            assert stream.getvalue() == before
        assert "saving a.ckpt [###############               ]" in before
    assert not progress_line.active


def test_a_line_that_cannot_be_told_once_is_told_later():
    stream, texts = Terminal(), iter([lambda: 1 / 0, lambda: "later"])
    last = None

    def text():
        nonlocal last
        last = next(texts, last)
        return last()

    with progress_line.ProgressLine(text, stream):
        deadline = time.monotonic() + 10
        while "later" not in stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "later" in stream.getvalue()


def test_the_view_of_a_run_inside_a_run():
    backend, training_step = step_on("CSX")
    with backend:
        outer = executor(steps=2, progress=True)
        for batch in outer:
            training_step(batch)
            for inner in executor(steps=1, progress=True):
                training_step(inner)
            assert isinstance(cstorch.tracing.context.context.view, LiveView)
            assert cstorch.tracing.context.context.view is outer._view
