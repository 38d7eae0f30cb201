"""Input workers: processes that stream batches in a fixed order, and what happens when they fail, die or hang."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping

import cstorch
import input_functions as fn
import pytest
import torch
from cstorch.backends import csx as flags
from cstorch.errors import DataError
from cstorch.tracing import nest
from restart_runs import stream
from shared_memory import nothing_left


@pytest.fixture(params=[1, 2, 3])
def workers(request):
    config = cstorch.distributed.ClusterConfig(num_workers_per_csx=request.param)
    with cstorch.backend("CSX", cluster_config=config):
        yield request.param


@pytest.fixture
def two_workers():
    with cstorch.backend("CSX", cluster_config=cstorch.distributed.ClusterConfig(num_workers_per_csx=2)) as backend:
        yield backend
    assert not [p for p in multiprocessing.active_children() if p.name.startswith("cstorch-worker")]


def run(input_fn, steps, *args, **options):
    loader = cstorch.utils.data.DataLoader(input_fn, *args)
    return cstorch.utils.data.DataExecutor(loader, num_steps=steps, **options)


def test_step_t_takes_worker_t_mod_n_and_epochs_follow_each_other(workers):
    seen = [(int(b["x"][0, 0]), int(b["rank"])) for b in run(fn.counting, 12, 6)]
    assert seen == [(i % 6, i % 6 % workers) for i in range(12)]


def test_the_length_is_that_of_all_workers(workers):
    loader = cstorch.utils.data.DataLoader(fn.counting, 5)
    assert len(loader) == 5
    assert len(list(cstorch.utils.data.DataExecutor(loader))) == 5


def test_every_structure_and_dtype_travels(two_workers):
    (expected, *_) = fn.every_kind()
    for batch in run(fn.every_kind, 4):
        assert type(batch) is type(expected)
        assert type(batch["sample"]) is fn.Sample
        assert batch["name"] == "a name"
        assert batch["count"] == 3
        torch.testing.assert_close(batch["sample"], expected["sample"], rtol=0, atol=0)
        torch.testing.assert_close(batch["several"], expected["several"], rtol=0, atol=0)


@pytest.mark.parametrize("kind", fn.CONTAINERS)
@pytest.mark.parametrize("count", [1, 2])
def test_every_container_arrives_and_feeds_a_step(kind, count):
    config = cstorch.distributed.ClusterConfig(num_workers_per_csx=count)
    with cstorch.backend("CSX", cluster_config=config):
        total = cstorch.trace(lambda batch: sum(t.sum() for t in nest.leaves(batch) if isinstance(t, torch.Tensor)))
        sums = []
        keep = cstorch.step_closure(lambda value: sums.append(float(value)))
        for step, batch in enumerate(run(fn.contained, 6, kind)):
            expected = fn.CONTAINERS[kind](torch.full((2, 3), float(step // count)))
            assert type(batch) is type(expected)
            assert str(batch) == str(expected)
            assert getattr(batch, "encodings", None) == getattr(expected, "encodings", None)
            keep(total(batch))
            assert len(total.programs) == 1
        assert sums[:2] != sums[-2:]
        tensors = [t for t in nest.leaves(expected) if isinstance(t, torch.Tensor)]
        assert sums[-1] == sum(float(t.sum()) for t in tensors)


def test_other_objects_in_a_batch_are_those_of_its_step(two_workers):
    seen = [(batch["counter"].n, batch["n"]) for batch in run(fn.changing, 8)]
    assert seen == [(i // 2 + 1, i // 2 + 1) for i in range(8)]


def test_tensors_of_a_batch_are_plain(two_workers):
    for batch in run(fn.with_gradients, 8):
        assert type(batch) is torch.Tensor
        assert not batch.requires_grad


def test_batches_may_grow(two_workers):
    sizes = [(batch.numel(), float(batch[-1])) for batch in run(fn.growing, 16)]
    assert sizes == [(4 ** (i // 2 + 1), float(i // 2 + 1)) for i in range(16)]


def test_batches_that_the_program_keeps_stay_what_they_are(two_workers):
    kept = list(run(fn.large, 14, 7))
    assert [float(t[0]) for t in kept] == [float(t[-1]) for t in kept] == [float(i // 2) for i in range(14)]


def test_a_worker_knows_who_it_is_and_the_controller_is_none(workers):
    rows = [row.tolist() for row in run(fn.identity, workers)]
    assert rows == [[1, rank, workers, 8, rank] for rank in range(workers)]
    assert not cstorch.distributed.is_streamer()
    assert cstorch.distributed.num_streamers() == 1


def test_python_paths_come_first_in_a_worker(tmp_path):
    (tmp_path / "only_there.py").write_text("import torch\ndef make():\n    return [torch.ones(1)]\n")
    config = cstorch.distributed.ClusterConfig(num_workers_per_csx=2, python_paths=[str(tmp_path)])
    sys.path.insert(0, str(tmp_path))
    try:
        import only_there
    finally:
        sys.path.remove(str(tmp_path))
    with cstorch.backend("CSX", cluster_config=config):
        assert len(list(run(only_there.make, 2))) == 2


def test_python_paths_are_on_the_path_of_a_worker_in_this_process(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("VALUE = 3\n")
    monkeypatch.setattr("sys.path", list(sys.path))

    def input_fn():
        import only_here

        return [torch.full((1,), float(only_here.VALUE))]

    config = cstorch.distributed.ClusterConfig(python_paths=[str(tmp_path)])
    with cstorch.backend("CSX", cluster_config=config):
        assert [float(batch) for batch in run(input_fn, 1)] == [3]


@pytest.mark.parametrize("count", [1, 2])
def test_a_worker_that_takes_more_than_wrk_memory_gi_is_an_error_that_names_it(count, monkeypatch):
    monkeypatch.setitem(flags.debug.__dict__, "wrk_memory_gi", 0.5)
    config = cstorch.distributed.ClusterConfig(num_workers_per_csx=count)
    with cstorch.backend("CSX", cluster_config=config):
        assert len(list(run(fn.counting, 3))) == 3
        with pytest.raises(
            DataError, match=r"(?s)worker 0 failed at step \d for want of memory\. .*wrk_memory_gi=0\.5 GiB"
        ):
            list(run(fn.hungry, 4))


@pytest.mark.parametrize("value", [0, -1, "1", True])
def test_wrk_memory_gi_is_checked(value):
    with pytest.raises(ValueError, match=r"csx\.debug\.wrk_memory_gi was set to .*, expected None or a number of GiB"):
        flags.debug.wrk_memory_gi = value


def test_an_input_function_that_cannot_be_sent_is_refused_before_anything_starts(two_workers):
    with pytest.raises(DataError, match=r"cannot be sent to the 2 input workers .*top level of a module"):
        next(iter(run(lambda: [torch.ones(1)], 2)))


def test_an_exception_in_a_worker_names_its_rank_step_and_line(two_workers):
    with pytest.raises(
        DataError, match=r"(?s)worker 0 failed at step 6.*in failing.*in the middle of the data"
    ) as caught:
        list(run(fn.failing, 20, 3))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_loader_without_batches_is_an_error(two_workers):
    with pytest.raises(DataError, match="yielded no batch"):
        list(run(fn.empty, 2))


def test_a_killed_worker_is_noticed_at_once(two_workers):
    with pytest.raises(DataError, match=r"worker 0 .* was killed by signal 9"):
        list(run(fn.killed, 20, 2))


def test_a_worker_that_is_killed_while_it_works_is_noticed_within_two_seconds(two_workers):
    loader = cstorch.utils.data.DataLoader(fn.slow, 1000.0)
    threading.Timer(1.0, lambda: os.kill(loader._pool.streams[0]._process.pid, signal.SIGKILL)).start()
    killed = time.monotonic() + 1.0
    with pytest.raises(DataError, match=r"worker 0 .* was killed by signal 9"):
        next(iter(cstorch.utils.data.DataExecutor(loader, num_steps=3)))
    assert 0 < time.monotonic() - killed < 2 + 2  # noticed, and the other one ended, which takes up to two


def test_a_hanging_worker_is_an_error_after_the_timeout(two_workers, monkeypatch):
    list(run(fn.counting, 2))  # the fork server is up
    monkeypatch.setitem(flags.data.__dict__, "worker_timeout", 2.0)
    for input_fn in (fn.hanging, fn.hanging_at_once):
        begin = time.monotonic()
        with pytest.raises(DataError, match=r"worker 0 .* has sent nothing for 2 seconds"):
            list(run(input_fn, 20))
        assert time.monotonic() - begin < 20


def test_leaving_the_loop_ends_the_workers(two_workers):
    for batch in run(fn.counting, 100, 6):
        assert batch["x"].shape == (2, 3)
        break


def test_nothing_is_left_in_shared_memory(two_workers):
    with nothing_left():
        kept = list(run(fn.large, 4))
    assert len(kept) == 4


ORPHAN = """
import cstorch, sys, time
sys.path.insert(0, {tests!r})
import input_functions as fn
if __name__ == "__main__":
    config = cstorch.distributed.ClusterConfig(num_workers_per_csx=2)
    cstorch.backend("CSX", cluster_config=config)
    loader = cstorch.utils.data.DataLoader(fn.counting, 1000)
    executor = iter(cstorch.utils.data.DataExecutor(loader, num_steps=1000))
    next(executor)
    print(*[s._process.pid for s in loader._pool.streams], flush=True)
    time.sleep(100)
"""


def test_workers_end_with_a_controller_that_is_killed(tmp_path):
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN.format(tests=os.path.dirname(__file__)))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.send_signal(signal.SIGKILL)
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{pid}") and not _is_zombie(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}") and not _is_zombie(pid)]


def _is_zombie(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _plain(value):
    """`value` with lists where tensors and lazily loaded containers were."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("location", [None, "cache", "cpu"])
def test_the_state_of_a_loader_goes_through_a_checkpoint(two_workers, tmp_path, location):
    first, (saved,) = stream("sampled", 6, 6)
    cstorch.save({"dataloader": saved["loader"], "step": 6}, tmp_path / "a.mdl")
    found = cstorch.load(tmp_path / "a.mdl", location)
    assert _plain(found["dataloader"]) == _plain(saved["loader"])
    assert _plain(torch.load(tmp_path / "a.mdl", weights_only=True)["dataloader"]) == _plain(saved["loader"])
    resumed = {**saved, "loader": found["dataloader"]}
    assert first + stream("sampled", 9, state=resumed)[0] == stream("sampled", 15)[0]


def test_a_run_after_one_that_went_on_begins_anew(two_workers):
    loader = cstorch.utils.data.DataLoader(fn.restartable)
    orders = []
    for state in (None, stream("restartable", 3, 3)[1][-1]["loader"], None):
        if state is not None:
            loader.load_state_dict(state)
        orders.append([float(b) for b in cstorch.utils.data.DataExecutor(loader, num_steps=4)])
    assert orders[0] == orders[2] != orders[1]
    assert loader.state_dict()["__cstorch_steps__"] == 4


def test_the_state_off_a_checkpoint_step_is_an_error(workers):
    loader = cstorch.utils.data.DataLoader(fn.restartable)
    with pytest.raises(DataError, match="no run has begun"):
        loader.state_dict()
    for step, _ in enumerate(cstorch.utils.data.DataExecutor(loader, num_steps=4, checkpoint_steps=2)):
        if step in (0, 2):
            with pytest.raises(DataError, match=f"iteration {step} is no checkpoint step"):
                loader.state_dict()
        else:
            own = {"__cstorch_steps__", "__cstorch_random__"}
            assert set(loader.state_dict()) == {f"worker_{i}" for i in range(workers)} | own
    assert loader.state_dict()["__cstorch_steps__"] == 4


def test_worker_states_are_only_asked_for_in_state_dict():
    with pytest.raises(RuntimeError, match="outside the state_dict"):
        cstorch.distributed.get_worker_state()


def test_what_a_worker_has_streamed():
    streamer = cstorch.distributed.streaming.Streamer(rank=3, num_workers_per_csx=2, num_csx=2)
    state = streamer.checkpoint(7, 4)
    assert (state.wse_id, state.local_worker_id, state.total_num_workers) == (1, 1, 4)
    assert (state.appliance_step, state.worker_step, state.samples_streamed) == (7, 3, 12)
