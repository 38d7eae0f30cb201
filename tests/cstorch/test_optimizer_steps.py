"""What an optimizer may be and do in a traced step."""

import cstorch
import pytest
import torch
from cstorch.errors import OptimizerError
from programs import linear
from torch import nn


def test_lbfgs_is_refused_by_name(csx):
    model, compiled = linear()
    optimizer = torch.optim.LBFGS(model.parameters())

    @cstorch.trace
    def step(x):
        optimizer.step(lambda: compiled(x).sum())

    with pytest.raises(OptimizerError, match="LBFGS cannot be part of a traced step"):
        step(torch.ones(1, 8))


def test_dampening_is_refused_by_name(csx):
    model, compiled = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.1)

    @cstorch.trace
    def step(x):
        compiled(x).sum().backward()
        optimizer.step()

    with pytest.raises(OptimizerError, match=r"dampening=0\.1"):
        step(torch.ones(1, 8))


def test_optimizer_state_of_a_cpu_run_continues(csx):
    def run(device, optimizer_state=None, weights=None, steps=3):
        torch.manual_seed(4)
        model = nn.Linear(8, 4)
        if weights:
            model.load_state_dict(weights)
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        if optimizer_state:
            optimizer.load_state_dict(optimizer_state)

        def step(x):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        step = cstorch.trace(step) if device == "csx" else step
        for _ in range(steps):
            step(torch.ones(2, 8))
        return {k: v.cpu() for k, v in model.state_dict().items()}, optimizer.state_dict()

    weights, state = run("cpu")
    there, _ = run("csx", state, weights)
    straight, _ = run("cpu", steps=6)
    for name, expected in straight.items():
        torch.testing.assert_close(there[name], expected, rtol=1e-5, atol=1e-6)
