"""Each activity sees what the program does: memory that it takes, work, files, faults, threads, children."""

import json
import subprocess
import sys
import threading
import time

import cstorch
import pytest
import torch
from cstorch import plugins
from cstorch_psutil import activities

NAMES = ["process_memory", "children_memory", "process_cpu", "process_io", "page_faults", "threads"]
MIB = 2**20


@pytest.fixture(autouse=True)
def cpu_backend(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with cstorch.backend("CPU"):
        yield


@pytest.fixture
def child():
    """A process that takes 50 MiB, works when told, and ends when told."""
    code = (
        "import sys, time\n"
        "held = bytearray(50 * 2**20)\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    until = time.process_time() + 0.3\n"
        "    while time.process_time() < until: pass\n"
        "    print('done', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def test_the_installed_plugin_registers_all_of_them():
    (plugin,) = [p for p in plugins.list() if p.name == "psutil"]
    assert plugin.problem is None
    assert plugin.distribution.startswith("cstorch-psutil ")
    assert [a.name() for a in activities.ACTIVITIES] == NAMES


def test_a_run_reports_them_by_name():
    loader = cstorch.utils.data.DataLoader(lambda: [torch.ones(4, 1)] * 3)
    executor = cstorch.utils.data.DataExecutor(loader, profiler_activities=NAMES)
    for _ in executor:
        pass
    assert executor.profiler.process_memory["rss"] > 20 * MIB
    written = json.loads((executor.artifact_dir / "performance.json").read_text())
    assert set(NAMES) < set(written)
    for name in NAMES:
        assert all(isinstance(value, (int, float)) for value in written[name].values())


def test_memory_now_and_at_its_highest():
    memory = activities.ProcessMemory()
    before = memory.compute()["rss"]
    held = torch.ones(64 * MIB // 4)
    memory.sample()
    del held
    found = memory.compute()
    assert found["peak_rss"] - before > 60 * MIB
    assert found["rss"] - before < 32 * MIB


def test_memory_of_children(child):
    memory = activities.ChildrenMemory()
    found = memory.compute()
    assert found["processes"] == 1
    assert found["rss"] > 50 * MIB
    child.kill()
    child.wait()
    found = memory.compute()
    assert (found["processes"], found["rss"]) == (0, 0)
    assert found["peak_rss"] > 50 * MIB


def test_cpu_of_the_process_and_its_children(child):
    cpu = activities.Cpu()
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    child.stdin.write("work\n")
    child.stdin.flush()
    child.stdout.readline()
    cpu.sample()
    child.kill()
    child.wait()
    found = cpu.compute()
    assert 0.45 < found["user"] + found["system"] < 2
    assert found["percent"] > 10


def test_a_child_that_is_older_counts_from_the_start(child):
    child.stdin.write("work\n")
    child.stdin.flush()
    child.stdout.readline()
    cpu = activities.Cpu()
    found = cpu.compute()
    assert found["user"] + found["system"] < 0.25


def test_a_child_that_is_younger_counts_whole():
    faults = activities.PageFaults()
    code = "import time; held = bytearray(30 * 2**20); print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    process.stdout.readline()
    try:
        assert faults.compute()["minor"] > 30 * MIB / 4096 / 2
    finally:
        process.kill()
        process.wait()


def test_bytes_written(tmp_path):
    io = activities.InputOutput()
    with open(tmp_path / "file", "wb") as file:
        for _ in range(8):
            file.write(b"x" * MIB)
    found = io.compute()
    assert found["write_count"] >= 8
    assert found["write_bytes"] >= 0  # where the file lies in memory, none reach a disk


def test_page_faults_of_new_memory():
    faults = activities.PageFaults()
    before = faults.compute()["minor"]
    held = bytearray(16 * MIB)
    assert faults.compute()["minor"] - before > 16 * MIB / 4096 / 2
    assert len(held) == 16 * MIB


def test_threads_that_start_and_end(child):
    threads = activities.Threads()
    before = threads.compute()
    assert before["children"] == 1
    stop = threading.Event()
    started = [threading.Thread(target=stop.wait) for _ in range(3)]
    for thread in started:
        thread.start()
    assert threads.compute()["process"] == before["process"] + 3
    stop.set()
    for thread in started:
        thread.join()
    found = threads.compute()
    assert found["process"] == before["process"]
    assert found["peak_process"] == before["process"] + 3


def test_steps_look_no_more_often_than_the_interval():
    now = [0.0]
    looks = []

    class Looks(activities.Level):
        @staticmethod
        def now():
            looks.append(now[0])
            return {}

    activity = Looks(lambda: now[0])
    for _ in range(100):
        now[0] += 0.01
        activity.update(1)
    assert len(looks) == 6  # at the start and five times in the second
