"""Input functions that worker processes import."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import OrderedDict, UserDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import cstorch
import numpy as np
import torch
from torch.utils.data import DataLoader


class Sample(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclass
class Labelled:
    x: torch.Tensor
    name: str


class Encoding(UserDict):
    """As Hugging Face's BatchEncoding: a mapping that is no dict, with attributes of its own."""

    def __init__(self, data=None, encodings=None):
        super().__init__(data)
        self.encodings = encodings

    def __getattr__(self, item):
        try:
            return self.__dict__["data"][item]
        except KeyError:
            raise AttributeError(item) from None


CONTAINERS = {
    "tensor": lambda x: x,
    "dict": lambda x: {"x": x, "y": x + 1},
    "list": lambda x: [x, x + 1],
    "tuple": lambda x: (x, x + 1),
    "namedtuple": lambda x: Sample(x, x + 1),
    "dataclass": lambda x: Labelled(x, "a"),
    "mapping": lambda x: Encoding({"x": x, "shape": x + 3, "deep": {"y": (x + 1, [x + 2])}}, encodings=["e"]),
    "ordered": lambda x: OrderedDict(b=x, a=x + 1),
}


def contained(kind):
    return [CONTAINERS[kind](torch.full((2, 3), float(i))) for i in range(6)]


class Counter:
    """An object in a batch that the loader goes on changing."""

    def __init__(self):
        self.n = 0


def changing():
    counter = Counter()
    for _ in range(6):
        counter.n += 1
        yield {"x": torch.zeros(1), "counter": counter, "n": counter.n}


def with_gradients():
    weight = torch.ones(2, requires_grad=True)
    return [weight * 2, torch.nn.Parameter(torch.ones(2))] * 4


def hanging_at_once():
    time.sleep(1000)


def hungry():
    yield torch.zeros(1)
    yield torch.zeros(1 << 29)


def slow(seconds=0.05):
    for i in range(1000):
        time.sleep(seconds)
        yield torch.tensor([float(i)])


def counting(length=5, start=0):
    rank, total = cstorch.distributed.get_streaming_rank(), cstorch.distributed.num_streamers()
    return [{"x": torch.full((2, 3), float(start + i)), "rank": torch.tensor(rank)} for i in range(rank, length, total)]


def every_kind():
    return [
        OrderedDict(
            sample=Sample(torch.ones(2, dtype=torch.bfloat16), torch.tensor(True)),
            several=[torch.arange(3), (torch.zeros(0, 4), torch.tensor(1 + 2j))],
            name="a name",
            count=3,
        )
    ] * 4


def growing():
    return [torch.full((4**i,), float(i)) for i in range(1, 9)]


def large(count=8):
    return [torch.full((1 << 20,), float(i)) for i in range(count)]


def failing(at=3):
    for i in range(at):
        yield torch.tensor([float(i)])
    raise ZeroDivisionError("in the middle of the data")


def killed(at=2):
    for i in range(10):
        if i == at:
            os.kill(os.getpid(), signal.SIGKILL)
        yield torch.tensor([float(i)])


def hanging():
    yield torch.zeros(1)
    time.sleep(1000)


def empty():
    return []


def identity():
    d = cstorch.distributed
    row = [d.is_streamer(), d.get_streaming_rank(), d.num_streamers(), d.get_streaming_batch_size(8), d.get_ordinal()]
    return [torch.tensor([int(v) for v in row])] * 4


class Noisy(torch.utils.data.Dataset[Any]):
    """Augments with random numbers, as image pipelines do."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor([float(index)]) + torch.rand(1)


class Restartable:
    """Shuffles by a generator of its own and follows the protocol by hand."""

    def __init__(self):
        rank, total = cstorch.distributed.get_streaming_rank(), cstorch.distributed.num_streamers()
        self.generator = torch.Generator().manual_seed(100 + rank)
        self.indices = list(range(rank, 24, total))
        self.start, self.position = self.generator.get_state(), 0

    def __iter__(self):
        if self.position == len(self.indices):
            self.start, self.position = self.generator.get_state(), 0
        self.generator.set_state(self.start)
        order = torch.randperm(len(self.indices), generator=self.generator).tolist()
        noise = torch.rand(len(order), generator=self.generator)
        while self.position < len(order):
            self.position += 1
            i = self.position - 1
            yield torch.tensor([float(self.indices[order[i]])]) + noise[i]

    def state_dict(self):
        worker = cstorch.distributed.get_worker_state()
        return {"start": self.start, "position": self.position, "worker": worker.global_worker_id}

    def load_state_dict(self, state_dict, strict=True):
        self.start, self.position = state_dict["start"], state_dict["position"]

    def aggregate_state_dict(self, worker_states):
        return {f"worker_{i}": state for i, state in enumerate(worker_states)}

    def deaggregate_state_dict(self, aggregated_state_dict, strict=True):
        return aggregated_state_dict[f"worker_{cstorch.distributed.get_streaming_rank()}"]


def restartable():
    return Restartable()


def sampled(batch_size=2, samples=23):
    data = torch.arange(float(samples)).unsqueeze(1)
    sampler = cstorch.utils.data.DistributedSampler(data, seed=3, batch_size=batch_size)
    return DataLoader(data, batch_sampler=sampler)


def shuffled(processes=0):
    return DataLoader(Noisy(), batch_size=2, shuffle=True, num_workers=processes)


def stateful(processes=0):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Noisy(), batch_size=2, shuffle=True, num_workers=processes)


def sampled_evenly():
    return sampled(samples=24)


def sampled_noisy():
    return DataLoader(Noisy(), batch_sampler=cstorch.utils.data.DistributedSampler(range(24), seed=3, batch_size=2))


def drawn_when_called():
    order = torch.randperm(7).tolist()
    return (torch.tensor([i + random.random()]) + torch.rand(1) + np.random.rand() for i in order)


def drawn_in_a_list():
    return [torch.rand(1) for _ in range(5)]
