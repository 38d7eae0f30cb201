"""However a run on several systems ends, nothing of it stays: no process, folder, shared memory, socket or thread."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import cstorch
import pytest
import torch
from test_several_systems import train, unbroken

KILLS = int(os.environ.get("CSTORCH_KILLS", "3"))
"""So many systems are killed in one run; the number that is asked for takes longer than a test may."""


def wait_until(holds, seconds=20.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def alive(pid):
    """Whether a process is there, and not only waiting to be asked how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def sockets():
    """The open sockets of this process."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:  # of the listing itself
            continue
    return [name for name in found if name.startswith("socket:")]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_stays_when_the_controller_is_stopped(tmp_path, how):
    memory = set(os.listdir("/dev/shm"))
    progress, temporary = tmp_path / "progress", tmp_path / "temporary"
    temporary.mkdir()
    script = str(Path(__file__).with_name("systems_endless.py"))
    process = subprocess.Popen(
        [sys.executable, script, str(progress)],
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: progress.exists() and int(progress.read_text().split()[0]) > 5, 60.0)
        pids = [int(word) for word in progress.read_text().split()[1:]]
        assert len(pids) == 1
        process.send_signal(how)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == -how or (how == signal.SIGINT and process.returncode in (1, 130))
    if how == signal.SIGINT:
        assert errors.rstrip().endswith("KeyboardInterrupt")
    wait_until(lambda: not any(map(alive, pids)))
    wait_until(lambda: not list(temporary.glob("cstorch-*")))
    assert set(os.listdir("/dev/shm")) <= memory


def test_a_system_that_hangs_is_replaced(caplog, monkeypatch):
    monkeypatch.setattr(cstorch.backends.csx.systems, "timeout", 4.0)

    def stop(step, backend):
        if step == 7:
            os.kill(backend.appliance.pids[0], signal.SIGSTOP)

    torch.testing.assert_close(train(2, stop, dropout=0.5), unbroken(), rtol=0, atol=0)
    assert "system 1 has kept the others waiting for 4 seconds in step 7: it hangs." in caplog.text


def test_many_killed_systems_leave_nothing_behind():
    pids, seen = [], []

    def kill(step, backend):
        if step % 6 == 1 or (KILLS > 3 and step):
            pids.append(backend.appliance.pids[0])
            os.kill(pids[-1], signal.SIGKILL)
        seen.append((len(sockets()), threading.active_count()))

    memory = set(os.listdir("/dev/shm"))
    before = len(sockets())
    broken = train(2, kill, dropout=0.5, attempts=KILLS + 1)
    assert len(set(pids)) >= KILLS
    torch.testing.assert_close(broken, unbroken(), rtol=0, atol=0)
    for early, *late in zip(*seen[1:], strict=True):  # the system that has just been killed may not be all gone yet
        assert min(late[-5:]) <= early
    wait_until(lambda: len(sockets()) == before)
    assert not any(map(alive, pids))
    assert set(os.listdir("/dev/shm")) <= memory
