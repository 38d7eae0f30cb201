"""Random numbers advance at every replay and follow the seed."""

import cstorch
import pytest
import torch
import torch.nn.functional as F
from torch import nn


def masks(backend, seed, steps=4):
    drop = nn.Dropout(0.5)
    seen = []

    @cstorch.trace
    def step(x):
        cstorch.step_closure(seen.append)(drop(x))

    torch.manual_seed(seed)
    for _ in range(steps):
        step(torch.ones(64))
    return torch.stack(seen)


def test_dropout_masks_differ_and_follow_the_seed(csx):
    first, again, other = masks(csx, 1), masks(csx, 1), masks(csx, 2)
    assert all(not torch.equal(first[i], first[j]) for i in range(4) for j in range(i))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.native
def test_compiled_dropout_masks_differ_and_follow_the_seed(csx):
    first, again, other = masks(csx, 1), masks(csx, 1), masks(csx, 2)
    assert all(not torch.equal(first[i], first[j]) for i in range(4) for j in range(i))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert 0.3 < (first == 0).float().mean() < 0.7


def test_dropout_draws_what_eager_draws(csx):
    torch.manual_seed(5)
    eager = torch.stack([F.dropout(torch.ones(64), 0.5) for _ in range(4)])
    assert torch.equal(masks(csx, 5), eager)


@pytest.mark.native
def test_compiled_dropout_draws_what_eager_draws_in_deterministic_mode(csx):
    torch.use_deterministic_algorithms(True)
    try:
        torch.manual_seed(5)
        eager = torch.stack([F.dropout(torch.ones(64), 0.5) for _ in range(4)])
        assert torch.equal(masks(csx, 5), eager)
    finally:
        torch.use_deterministic_algorithms(False)


def test_random_numbers_of_the_host_are_named(csx):
    with pytest.warns(
        UserWarning, match="draws random numbers on the host with torch's cpu generator at .*test_random_numbers.py:"
    ):
        cstorch.trace(lambda x: x + torch.rand(()))(torch.ones(2))
