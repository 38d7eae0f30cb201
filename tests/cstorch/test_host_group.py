"""Processes of one host exchange tensors through memory: sums, gatherings, messages, and errors when one is gone."""

import contextlib
import itertools
import os
from concurrent.futures import ThreadPoolExecutor

import cstorch
import pytest
import torch
from cstorch._torch_private.collectives import (
    HOST_GROUP,
    HOST_GROUP_CALLS,
    all_gather,
    all_reduce,
    host_group_bytes,
    is_connection_error,
    make_host_group,
    unregister_group,
    wait,
)
from cstorch.compiler.cache import cache_folder
from cstorch.native_source import built
from test_several_systems import train

numbers = itertools.count()


@pytest.fixture(scope="module")
def library():
    with cstorch.backend("CSX") as backend:  # in the folder that all tests share
        return built(HOST_GROUP, cache_folder(backend.compile_dir), HOST_GROUP_CALLS)


@contextlib.contextmanager
def members(library, size, timeout=20.0):
    """The names of the groups of `size` members, which are threads here."""
    memory = os.memfd_create("test")
    os.ftruncate(memory, host_group_bytes(library, size))
    names = [f"member {next(numbers)}" for _ in range(size)]
    store = torch.distributed.HashStore()
    groups = [
        make_host_group(library, name, store, rank, size, memory, [-1] * size, timeout)
        for rank, name in enumerate(names)
    ]
    os.close(memory)
    try:
        yield names, groups
    finally:
        for name in names:
            with contextlib.suppress(RuntimeError):
                unregister_group(name)


def in_threads(function, size):
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(function, range(size)))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("dtype", "how"), [(torch.float32, "sum"), (torch.float64, "sum"), (torch.int64, "sum"), (torch.uint8, "max")]
)
def test_all_members_get_the_same_sums(library, size, dtype, how):
    lengths = [1, 70_000, 0, 6_000_000, 5]  # the fourth is more than the ring of a member holds
    given = [[torch.randint(9, (n,)).to(dtype) for n in lengths] for _ in range(size)]

    def run(rank):
        started = [all_reduce(tensor, how, names[rank]) for tensor in given[rank]]
        return [wait(tensor) for tensor in reversed(started)][::-1]  # in any order

    with members(library, size) as (names, _):
        results = in_threads(run, size)
    for i in range(len(lengths)):
        every = torch.stack([one[i] for one in given])
        expected = every.sum(0).to(dtype) if how == "sum" else every.max(0).values
        for result in results:
            torch.testing.assert_close(result[i], expected, rtol=0, atol=0)


def test_sums_of_three_have_the_same_bits_everywhere(library):
    given = [torch.randn(300_001, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]
    with members(library, 3) as (names, _):
        results = in_threads(lambda rank: wait(all_reduce(given[rank], "sum", names[rank])), 3)
    expected = given[0] + given[1] + given[2]
    assert all(torch.equal(result, expected) for result in results)


def test_parts_are_gathered_in_the_order_of_the_ranks(library):
    given = [torch.full((100_000,), float(rank)) for rank in range(3)]
    with members(library, 3) as (names, _):
        results = in_threads(lambda rank: wait(all_gather(given[rank], 3, names[rank])), 3)
    assert all(torch.equal(result, torch.cat(given)) for result in results)


def test_messages_longer_than_their_ring_arrive_in_order(library):
    sent = [torch.randn(n) for n in (3, 3_000_000, 1, 0, 100_000)]

    def run(rank):
        if rank == 0:
            for tensor in sent:
                groups[0].send([tensor], 1, 0).wait()
            return None
        arrived = [torch.empty_like(tensor) for tensor in sent]
        for tensor in arrived:
            groups[1].recv([tensor], 0, 0).wait()
        return arrived

    with members(library, 2) as (_, groups):
        arrived = in_threads(run, 2)[1]
    assert all(map(torch.equal, arrived, sent))


def test_a_member_that_does_not_come_or_has_gone_is_an_error(library):
    with members(library, 2, timeout=0.3) as (names, groups):
        with pytest.raises(RuntimeError, match="Timed out waiting 300ms") as raised:
            wait(all_reduce(torch.ones(3), "sum", names[0]))
        assert is_connection_error(raised.value)
    with members(library, 2) as (names, groups):
        unregister_group(names[1])
        del groups[1]
        with pytest.raises(RuntimeError, match="process 1 of this host is gone") as raised:
            wait(all_reduce(torch.ones(3), "sum", names[0]))
        assert is_connection_error(raised.value)


def test_numbers_that_are_not_exchanged_are_named(library):
    with members(library, 2) as (names, _), pytest.raises(RuntimeError, match="do not exchange numbers of type Half"):
        in_threads(lambda rank: wait(all_reduce(torch.ones(3).half(), "sum", names[rank])), 2)


@pytest.mark.parametrize("host_memory", [True, False])
def test_systems_exchange_through_memory_or_sockets_alike(monkeypatch, caplog, host_memory):
    monkeypatch.setattr(cstorch.backends.csx.systems, "host_memory", host_memory)
    caplog.set_level("INFO", logger="cstorch.systems")
    one, two = train(1), train(2)
    torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-6)
    assert ("exchange through its memory" in caplog.text) == host_memory


def test_without_a_compiler_systems_exchange_over_sockets(monkeypatch, caplog):
    from cstorch.appliance import group

    def fails(*args):
        raise FileNotFoundError("no g++")

    monkeypatch.setattr(group, "built", fails)
    caplog.set_level("INFO", logger="cstorch.systems")
    weights, _ = train(2)
    assert "over sockets: no g++" in caplog.text
    assert "its memory" not in caplog.text
    torch.testing.assert_close(weights, train(1)[0], rtol=1e-5, atol=1e-6)
