"""Every way to clear, accumulate, clip and change gradients in a step, equal to eager."""

import cstorch
import pytest
import torch
from cstorch.errors import ValueReadError
from programs import batches, linear, same_as_eager
from torch import nn


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_accumulate_over_batches_as_in_eager(csx, set_to_none):
    def train(run):
        model = nn.Linear(8, 4).to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

        @run.trace
        def step(x, i):
            if i % 3 == 0:
                optimizer.zero_grad(set_to_none=set_to_none)
            (model(x).square().mean() / 3).backward()
            if i % 3 == 2:
                optimizer.step()

        for i, x in enumerate(batches(12, 2, 8)):
            step(x, i)
        return model, optimizer

    same_as_eager(train)


def test_a_forgotten_zero_grad_accumulates_as_in_eager(csx):
    def train(run):
        model = nn.Linear(8, 4).to(run.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        @run.trace
        def step(x):
            model(x).square().mean().backward()
            optimizer.step()

        for x in batches(5, 2, 8):
            step(x)
        return model

    same_as_eager(train)


def test_a_consumed_gradient_is_not_read_silently(csx):
    model, compiled = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @cstorch.trace
    def step(x):
        optimizer.zero_grad()
        compiled(x).sum().backward()
        optimizer.step()

    step(torch.ones(1, 8))
    with pytest.raises(ValueReadError):
        model.weight.grad.norm()
    model.cpu()
    assert model.weight.grad is None


def test_freezing_a_parameter_makes_another_program(csx):
    def train(run):
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).to(run.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        @run.trace
        def step(x):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        for i, x in enumerate(batches(6, 2, 8)):
            model[0].requires_grad_(i not in (2, 3))
            step(x)
        return list(model.parameters())

    assert same_as_eager(train).count == 2
