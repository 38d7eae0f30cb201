"""A save in the background writes what the tensors were when it was called, and its failure is never lost."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import cstorch
import pytest
import torch
from cstorch.errors import CheckpointError
from cstorch.storage import atomic


@pytest.fixture
def held(monkeypatch):
    """Saves wait for this event before they write."""
    event, replace = threading.Event(), atomic.replace

    def wait(*args):
        assert event.wait(60)
        return replace(*args)

    monkeypatch.setattr(atomic, "replace", wait)
    yield event
    event.set()


def test_it_writes_what_the_tensors_were(tmp_path, held):
    state = {"w": torch.ones(300, 300), "small": torch.ones(2), "t": torch.arange(6.0).view(2, 3).t()}
    state["tied"] = state["w"]
    handle = cstorch.save(state, tmp_path / "a.ckpt", blocking=False)
    for value in state.values():
        value.zero_()
    assert not handle.done()
    with pytest.raises(TimeoutError, match=r"a\.ckpt is still being written"):
        handle.wait(0.01)
    held.set()
    handle.wait()
    assert handle.done()
    assert handle.error is None
    found = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert (found["w"] == 1).all()
    assert (found["small"] == 1).all()
    assert torch.equal(found["t"], torch.arange(6.0).view(2, 3).t())
    assert found["tied"].data_ptr() == found["w"].data_ptr()
    cstorch.storage.verify(tmp_path / "a.ckpt")


def test_saves_follow_one_another(tmp_path):
    for n in range(4):
        cstorch.save({"n": n, "w": torch.full((1 << n, 1000), float(n))}, tmp_path / f"{n}.ckpt", blocking=False)
    cstorch.storage.wait_for_saves()
    for n in range(4):
        found = cstorch.load(tmp_path / f"{n}.ckpt")
        assert (found["w"] == found["n"]).all()


def test_an_error_is_raised_by_who_waits_or_by_the_next_save(tmp_path):
    missing = tmp_path / "no" / "a.ckpt"
    with pytest.raises(CheckpointError, match="cannot be written"):
        cstorch.save({}, missing, blocking=False).wait()
    cstorch.save({}, tmp_path / "b.ckpt")
    cstorch.save({}, missing, blocking=False)
    with pytest.raises(CheckpointError, match="cannot be written"):
        cstorch.save({}, tmp_path / "b.ckpt")
    cstorch.save({}, tmp_path / "b.ckpt")


def test_the_interpreter_waits_at_its_exit(tmp_path):
    program = "import cstorch, torch, sys; cstorch.save({'w': torch.ones(1 << 20)}, sys.argv[1], blocking=False)"
    env = {**os.environ, "PYTHONPATH": str(Path(cstorch.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", program, tmp_path / "a.ckpt"], check=True, env=env)
    assert cstorch.load(tmp_path / "a.ckpt", "cpu")["w"].sum() == 1 << 20
