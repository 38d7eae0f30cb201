"""SyntheticDataset, DistributedSampler and compute_num_steps against what is worked out by hand."""

import pickle
import time
from collections import OrderedDict, namedtuple

import cstorch
import pytest
import torch
from cstorch.distributed.streaming import Streamer, streaming_as
from cstorch.utils.data import DistributedSampler, SyntheticDataset, compute_num_steps

Pair = namedtuple("Pair", "x y")


def index_tensor(index):
    return torch.tensor(index)


def test_synthetic_samples_follow_the_specification():
    fixed = torch.randn(3, dtype=torch.float64)
    spec = {"a": [fixed, (index_tensor,)], "b": OrderedDict(c=Pair(index_tensor, fixed))}
    dataset = pickle.loads(pickle.dumps(SyntheticDataset(spec, num_samples=4)))
    samples = list(dataset)
    assert len(dataset) == len(samples) == 4
    for index, sample in enumerate(samples):
        assert type(sample["b"]["c"]) is Pair
        assert sample["a"][1] == (torch.tensor(index),)
        assert sample["b"]["c"].x == index
        assert torch.equal(sample["a"][0], fixed)
    samples[0]["a"][0].zero_()  # a clone: the next sample does not see it
    assert torch.equal(dataset[0]["a"][0], fixed)
    assert dataset[-1]["b"]["c"].x == 3


def test_synthetic_data_is_shared_by_the_workers_of_a_torch_loader():
    loader = torch.utils.data.DataLoader(SyntheticDataset(index_tensor, 10), batch_size=2, num_workers=2)
    assert sorted(torch.cat(list(loader)).tolist()) == list(range(10))


def test_endless_synthetic_data():
    dataset = SyntheticDataset(torch.zeros(2))
    stream = iter(dataset)
    assert all(next(stream).shape == (2,) for _ in range(100))
    with pytest.raises(TypeError, match="endless"):
        len(dataset)


@pytest.mark.parametrize(
    ("spec", "samples", "kind", "message"),
    [
        ({"x": [torch.zeros(1), 3]}, 1, TypeError, r"sample_spec\['x'\]\[1\] is a int"),
        (torch.zeros(1), 0, ValueError, "num_samples is 0"),
        (torch.zeros(1), 1.5, TypeError, r"num_samples is 1\.5"),
        ([], 1, ValueError, "no tensor"),
    ],
)
def test_bad_specifications_are_named(spec, samples, kind, message):
    with pytest.raises(kind, match=message):
        SyntheticDataset(spec, samples)


def test_a_sample_function_must_return_a_tensor():
    with pytest.raises(TypeError, match="returned a int"):
        SyntheticDataset(lambda index: index, 1)[0]


def read(sampler, epochs=1):
    return [list(sampler) for _ in range(epochs)]


def test_an_unsharded_order_is_the_datasets():
    assert read(DistributedSampler(range(5), shuffle=False)) == [[0, 1, 2, 3, 4]]
    assert read(DistributedSampler(range(5), shuffle=False, batch_size=2)) == [[[0, 1], [2, 3]]]
    assert read(DistributedSampler(range(5), shuffle=False, batch_size=2, drop_last=False)) == [[[0, 1], [2, 3], [4]]]
    assert read(DistributedSampler(range(5), shuffle=False, batch_size=2, pad_last=True)) == [[[0, 1], [2, 3], [4, -1]]]
    assert read(DistributedSampler(range(3), shuffle=False, num_samples=7)) == [[0, 1, 2, 0, 1, 2, 0]]


@pytest.mark.parametrize("streamers", [1, 2, 3])
def test_streamers_take_turns_in_one_shuffled_order(streamers):
    whole = [b for epoch in read(DistributedSampler(range(20), seed=1, batch_size=2), 2) for b in epoch]
    parts = []
    for rank in range(streamers):
        with streaming_as(Streamer(rank, streamers)):
            sampler = DistributedSampler(range(20), seed=1, batch_size=2, drop_last=False)
            parts.append([b for epoch in read(sampler, 2) for b in epoch])
            assert abs(len(sampler) - 10 / streamers) < 1
    merged = [parts[i % streamers][i // streamers] for i in range(20)]
    assert merged == whole
    assert whole[:10] != whole[10:]
    assert sorted(index for batch in whole[:10] for index in batch) == list(range(20))


@pytest.mark.parametrize("done", [0, 3, 10, 14])
def test_a_sampler_goes_on_after_what_was_streamed(done):
    whole = [b for epoch in read(DistributedSampler(range(20), seed=1, batch_size=2), 3) for b in epoch]
    rest = DistributedSampler(range(20), seed=1, batch_size=2, start_index=2 * done)
    assert [b for epoch in read(rest, 2) for b in epoch][: 20 - done % 10] == whole[done:][: 20 - done % 10]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"start_index": -1}, "start_index is -1"),
        ({"num_samples": 0}, "num_samples is 0"),
        ({"pad_last": True}, "give a batch_size"),
    ],
)
def test_bad_sampler_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        DistributedSampler(range(4), **options)


@pytest.mark.parametrize(
    ("bounds", "steps"),
    [
        ({}, 10),
        ({"num_steps": 7}, 7),
        ({"max_steps": 9, "initial_step": 4}, 5),
        ({"num_epochs": 3}, 30),
        ({"num_epochs": 3, "steps_per_epoch": 4}, 12),
        ({"num_epochs": 2, "grad_accum_steps": 4}, 4),
        ({"num_steps": 7, "grad_accum_steps": 4}, 7),
        ({"num_steps": 7, "max_steps": 6, "num_epochs": 1}, 6),
    ],
)
def test_the_least_bound_counts(bounds, steps):
    assert compute_num_steps(range(10), **bounds) == steps


@pytest.mark.parametrize(
    ("loader", "bounds", "message"),
    [
        (range(10), {"num_steps": 0}, "num_steps is 0"),
        (range(10), {"max_steps": 3, "initial_step": 3}, "nothing is left|nothing left"),
        (range(3), {"grad_accum_steps": 4}, "has no step"),
        (iter([]), {"num_epochs": 1}, "has no length"),
    ],
)
def test_bounds_that_allow_nothing(loader, bounds, message):
    with pytest.raises(ValueError, match=message):
        compute_num_steps(loader, **bounds)


def test_the_batch_of_all_systems_is_divided():
    with streaming_as(Streamer(3, 2, 2)):
        assert cstorch.distributed.get_streaming_batch_size(8) == 4
        assert cstorch.distributed.num_tasks() == 4
        assert not cstorch.distributed.is_master_ordinal()
        with pytest.raises(ValueError, match="7 samples cannot be divided among 2 systems"):
            cstorch.distributed.get_streaming_batch_size(7)
    assert cstorch.distributed.get_streaming_batch_size(7) == 7


def test_job_time_sec_ends_a_run_after_a_whole_step():
    config = cstorch.distributed.ClusterConfig(job_time_sec=1)
    closed = []
    with cstorch.backend("CSX", cluster_config=config):
        loader = cstorch.utils.data.DataLoader(lambda: [torch.zeros(1)] * 10)
        note = cstorch.step_closure(closed.append)
        with pytest.raises(RuntimeError, match=r"ended after iteration 1: .* job_time_sec=1"):
            for step, _ in enumerate(cstorch.utils.data.DataExecutor(loader)):
                note(step)
                if step == 1:
                    time.sleep(1.1)
    assert closed == [0, 1]
