"""Dataloaders that go on where an earlier run stopped, with every kind of loader and number of workers."""

import json
import logging
import os
import subprocess
import sys

import cstorch
import input_functions as fn
import pytest
import torch
from cstorch.errors import DataError
from cstorch.utils.data import DataExecutor, DataLoader, Schedule
from restart_runs import KINDS, WORKERS, stream, with_workers


def test_forty_steps_are_seventeen_and_twenty_three_in_a_new_process(tmp_path):
    whole = {}
    for count in WORKERS:
        with with_workers(count):
            for kind in KINDS:
                whole[f"{kind}-{count}"], (state,) = stream(kind, 40, Schedule([16]))  # others are on their way
                cstorch.save(state, tmp_path / f"{kind}-{count}.mdl")
    program = [sys.executable, os.path.join(os.path.dirname(__file__), "restart_runs.py"), str(tmp_path)]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, timeout=200, check=True)
    second = json.loads(done.stdout)
    assert second == {name: steps[17:] for name, steps in whole.items()}
    assert whole["shuffled-2"][0::2] != whole["shuffled-2"][1::2]  # workers draw numbers of their own


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_may_stop_anywhere_and_more_than_once(count, kind):
    with with_workers(count):
        whole, _ = stream(kind, 20)
        seen, state = [], None
        for steps in (1, 1, 5, 6, 7):
            part, (*_, state) = stream(kind, steps, steps, state)
            seen += part
    assert seen == whole


@pytest.mark.parametrize(("kind", "count"), [("shuffled", 1), ("shuffled", 2), ("stateful", 1)])
def test_a_loader_with_processes_of_its_own_goes_on(kind, count):
    with with_workers(count):
        whole, (state,) = stream(kind, 9, Schedule([4]), None, 1)
        second, _ = stream(kind, 4, None, state, 1)
    if kind == "stateful":  # it does not save the random numbers of its processes
        second, whole = ([[int(value) for value in batch] for batch in seen] for seen in (second, whole))
    assert second == whole[5:]


def test_runs_of_one_process_draw_other_numbers_and_a_new_process_the_same():
    with with_workers(2):
        orders = []
        for _ in range(2):
            torch.manual_seed(3)
            loader = DataLoader(fn.shuffled)
            orders.append([[b.tolist() for b in DataExecutor(loader, num_steps=4)] for _ in range(2)])
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]


def test_going_on_by_skipping_is_logged(caplog):
    with with_workers(1):
        _, (state,) = stream("shuffled", 17, 17)
        with caplog.at_level(logging.INFO, "cstorch.data"):
            stream("shuffled", 1, None, state)
    assert "has no state of its own: it skips 5 batches of its epoch" in caplog.text


def test_data_that_have_become_shorter_are_noticed():
    shorter = DataLoader(lambda: [torch.rand(1) for _ in range(2)])
    with with_workers(1):
        _, (state,) = stream("drawn_in_a_list", 4, 4)
        shorter.load_state_dict(state["loader"])
        with pytest.raises(DataError, match=r"4 batches of the epoch were to be skipped .* ended after 2"):
            next(iter(DataExecutor(shorter, num_steps=1)))


@pytest.mark.parametrize(
    ("saved", "loaded"), [("shuffled", "restartable"), ("sampled", "shuffled"), ("shuffled", "sampled")]
)
def test_the_state_of_another_kind_of_loader_is_refused(saved, loaded):
    with with_workers(1):
        _, (state,) = stream(saved, 2, 2)
        with pytest.raises(DataError, match="saved by another kind of dataloader than the"):
            stream(loaded, 1, None, state)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", ["shuffled", "stateful"])
def test_another_number_of_workers_is_refused_where_the_loader_cannot_share_out_anew(kind, count):
    with with_workers(2):
        _, (state,) = stream(kind, 4, 4)
    with with_workers(count), pytest.raises(DataError, match=f"that of 2 workers, and this run has {count}"):
        stream(kind, 4, None, state)


@pytest.mark.parametrize("count", [1, 4])
def test_another_number_of_workers_shares_out_the_rest_of_a_distributed_sampler(count):
    with with_workers(1):
        whole, _ = stream("sampled_evenly", 16)
    with with_workers(2):
        first, (state,) = stream("sampled_evenly", 4, 4)
    assert state["loader"]["samples_streamed"] == 8
    with with_workers(count):
        second, _ = stream("sampled_evenly", 12, None, state)
    assert first + second == whole


class Recorder:
    """Follows the protocol; notes what it is called with."""

    def __init__(self, calls):
        self.calls = calls

    def __iter__(self):
        return iter([torch.zeros(3, 1)] * 9)

    def state_dict(self):
        return vars(cstorch.distributed.get_worker_state())

    def load_state_dict(self, state_dict, strict=True):
        self.calls.append(("load", state_dict, strict))

    def aggregate_state_dict(self, worker_states):
        return {"all": worker_states}

    def deaggregate_state_dict(self, aggregated_state_dict, strict=True):
        self.calls.append(("deaggregate", aggregated_state_dict, strict))
        return aggregated_state_dict["all"][0]


@pytest.mark.parametrize("backend", ["CSX", "CPU"])
def test_the_protocol_call_by_call(backend):
    calls = []
    with cstorch.backend(backend):
        loader = DataLoader(Recorder, calls)
        assert isinstance(loader.dataloader, cstorch.utils.data.RestartableDataLoader)
        states = []
        for _ in DataExecutor(loader, num_steps=5, checkpoint_steps=2):
            cstorch.checkpoint_closure(lambda: states.append(loader.state_dict()))()
        names = ("global_worker_id", "local_worker_id", "total_num_workers", "num_workers_per_csx", "num_csx", "wse_id")
        fixed = dict(zip(names, (0, 0, 1, 1, 1, 0)))
        streamed = [{**fixed, "appliance_step": n, "worker_step": n, "samples_streamed": 3 * n} for n in (2, 4, 5)]
        assert [state["all"] for state in states] == [[state] for state in streamed]
        loader.load_state_dict(states[1], strict=False)
        for _ in DataExecutor(loader, num_steps=2, checkpoint_steps=2):
            cstorch.checkpoint_closure(lambda: states.append(loader.state_dict()))()
        assert calls == [("deaggregate", {"all": [streamed[1]]}, False), ("load", streamed[1], False)]
        assert states[-1]["all"][0]["worker_step"] == 2  # of the present run only
        assert states[-1]["__cstorch_steps__"] == 6


class StateOnly:
    """Two methods, no `strict`: what StatefulDataLoader has, for those who do not have torchdata."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < 5:
            self.at += 1
            yield torch.tensor([self.at])
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state_dict):
        self.at = state_dict["at"]


@pytest.mark.parametrize("backend", ["CSX", "CPU"])
def test_two_methods_are_enough(backend):
    with cstorch.backend(backend):
        loader = DataLoader(StateOnly)
        seen = [int(batch) for batch in DataExecutor(loader, num_steps=3)]
        resumed = DataLoader(StateOnly)
        resumed.load_state_dict(loader.state_dict())
        assert seen + [int(batch) for batch in DataExecutor(resumed, num_steps=4)] == [1, 2, 3, 4, 5, 1, 2]


def test_a_state_cannot_be_loaded_in_the_loop():
    with cstorch.backend("CPU"):
        loader = DataLoader(StateOnly)
        for _ in DataExecutor(loader, num_steps=1):
            with pytest.raises(DataError, match="called in its run"):
                loader.load_state_dict({})
