"""Ctrl-C, break and exceptions in the loop, with and without workers: nothing is lost, and nothing is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from shared_memory import nothing_left

PROGRAM = """
import json, os, signal, sys, time
sys.path.insert(0, {tests!r})
import cstorch, input_functions as fn, torch
from cstorch.utils.data import DataExecutor, DataLoader

{body}

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell would have it ignored
    workers = int(sys.argv[1])
    with cstorch.backend("CSX", cluster_config=cstorch.distributed.ClusterConfig(num_workers_per_csx=workers)):
        main(workers)
"""


def start(tmp_path, body, workers):
    """The program in a session of its own."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(tests=os.path.dirname(__file__), body=body))
    return subprocess.Popen(
        [sys.executable, str(script), str(workers)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=tmp_path,
    )  # fmt: skip


def session_of(leader):
    """The living processes of a session, by their /proc/.../stat."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[3] == str(leader) and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


def end(process, seconds=60):
    """What it printed; nothing of it is left."""
    out, errors = process.communicate(timeout=seconds)
    deadline = time.monotonic() + 10
    while session_of(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert session_of(process.pid) == []
    assert "leaked" not in errors  # what the resource tracker says of semaphores and shared memory
    return out.splitlines(), errors


@pytest.fixture(autouse=True)
def nothing_is_left_in_shared_memory():
    with nothing_left():
        yield


LOOP = """
def main(workers):
    def loop(act, input_fn=fn.slow, steps=1000):
        closed, saved = [], []
        executor = DataExecutor(DataLoader(input_fn), num_steps=steps, checkpoint_steps=3)
        try:
            for batch in executor:
                cstorch.step_closure(closed.append)(executor.iteration)
                cstorch.checkpoint_closure(lambda: saved.append(executor.iteration))()
                if executor.iteration == 2 and act():
                    break
        finally:
            assert closed == [0, 1, 2], closed
            assert saved == [2], saved
            profile = json.loads((executor.artifact_dir / "performance.json").read_text())
            assert profile["total_samples"] in (2, 3), profile

    def fail():
        raise ArithmeticError("in the body")

    def interrupt():
        print("ready", flush=True)
        time.sleep(60)

    loop(lambda: True)
    try:
        loop(fail)
    except ArithmeticError as error:
        print("caught", error)
    try:
        loop(interrupt)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    assert len(list(DataExecutor(DataLoader(fn.counting), num_steps=4))) == 4  # a run goes on as if nothing was
    print("done")
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_however_the_loop_is_left_its_closures_run_and_its_workers_end(tmp_path, workers):
    process = start(tmp_path, LOOP, workers)
    assert process.stdout.readline() == "caught in the body\n"
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers as well
    out, errors = end(process)
    assert out == ["interrupted", "done"], errors
    assert process.returncode == 0


WAITING = """
def main(workers):
    print("ready", flush=True)
    try:
        next(iter(DataExecutor(DataLoader(fn.hanging_at_once), num_steps=4)))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise
"""


def test_ctrl_c_while_the_workers_are_awaited(tmp_path):
    process = start(tmp_path, WAITING, 2)
    process.stdout.readline()
    time.sleep(3)
    os.killpg(process.pid, signal.SIGINT)
    out, errors = end(process)
    assert out == ["interrupted"]
    assert "KeyboardInterrupt" in errors
    assert process.returncode == -signal.SIGINT


SEVERAL = """
def main(workers):
    train, valid = DataLoader(fn.counting, 7), DataLoader(fn.contained, "tuple")
    for _ in range(2):
        seen = [int(batch["x"][0, 0]) for batch in DataExecutor(train, num_steps=5)]
        assert seen == [0, 1, 2, 3, 4], seen
        seen = [int(x[0, 0]) for x, _ in DataExecutor(valid, num_steps=3 * workers)]
        assert seen == [i // workers for i in range(3 * workers)], seen
    unused = DataLoader(fn.counting, 7)
    assert len(unused) == 7  # asks the workers, whose loop never begins
    kept = list(DataExecutor(DataLoader(fn.large), num_steps=8))  # views of shared memory outlive the run
    assert [float(t[-1]) for t in kept] == [float(i // workers) for i in range(8)]
    executor = iter(DataExecutor(train, num_steps=5))
    next(executor)  # a loop that is never finished
    print("done")
"""


def test_several_runs_and_one_that_is_left_open(tmp_path):
    out, errors = end(start(tmp_path, SEVERAL, 2))
    assert out == ["done"], errors


FAILING = """
def main(workers):
    for input_fn, args in ((fn.failing, (3,)), (fn.killed, (2,)), (fn.empty, ())):
        try:
            list(DataExecutor(DataLoader(input_fn, *args), num_steps=20))
        except RuntimeError as error:
            print(type(error).__name__)
    for batch in DataExecutor(DataLoader(fn.shuffled, 1), num_steps=3):  # processes of the workers
        pass
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_nothing_is_left_after_failures_and_the_end_of_the_program(tmp_path):
    process = start(tmp_path, FAILING, 2)
    out, errors = end(process)
    assert out == ["DataError"] * 3, errors
    assert process.returncode == -signal.SIGTERM


UNGUARDED = """
import sys
sys.path.insert(0, {tests!r})
import cstorch, input_functions as fn
cstorch.backend("CSX", cluster_config=cstorch.distributed.ClusterConfig(num_workers_per_csx=2))
list(cstorch.utils.data.DataExecutor(cstorch.utils.data.DataLoader(fn.counting), num_steps=4))
"""


def test_a_program_without_a_main_guard_is_told_so(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED.format(tests=os.path.dirname(__file__)))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "input worker 0" in last
    assert 'is the run below `if __name__ == "__main__":` there?' in last
