"""Random numbers advance at every replay and follow the seed."""

import warnings

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
        cstorch.trace(lambda x: x + torch.rand(()).item())(torch.ones(2))


HOST_DRAWS = {
    "rand": lambda x: x + torch.rand(x.shape),
    "mask": lambda x: x * (torch.rand(4) > 0.5).float(),
    "in place": lambda x: x + torch.empty(4).normal_(),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full((4,), 0.5)),
    "permutation": lambda x: x[torch.randperm(4)],
    "moved": lambda x: x * torch.randn(4).to("csx" if x.device.type == "csx" else "cpu"),
}


@pytest.mark.parametrize("name", HOST_DRAWS)
def test_a_host_draw_is_a_draw_of_the_program(csx, name):
    seen = []
    step = cstorch.trace(lambda x: cstorch.step_closure(seen.append)(HOST_DRAWS[name](F.dropout(x, 0.5))))
    x = torch.arange(1.0, 5.0)
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            step(x)
    torch.manual_seed(3)
    for found in seen:
        torch.testing.assert_close(found, HOST_DRAWS[name](F.dropout(x, 0.5)))
