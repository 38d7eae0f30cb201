"""Numbers of a call and of param_groups are read anew at each step; what Python branches on is a guard."""

import itertools
import warnings

import cstorch
import pytest
import torch
from programs import batches, linear, mlp, same_as_eager
from torch import nn


def test_a_number_argument_is_read_at_each_step_and_guards_branches(csx):
    calls, seen = [], []

    @cstorch.trace
    def step(x, i):
        calls.append(1)
        weight = min(1.0, i / 4)
        cstorch.step_closure(lambda *a: seen.append([float(v) for v in a]))(x.sum() * weight, i * 2, i % 3)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(8):
            step(torch.ones(1), i)
    assert seen == [[min(1.0, i / 4), i * 2, i % 3] for i in range(8)]
    assert len(calls) == 2


def test_a_number_that_python_needs_becomes_a_guard(csx):
    seen = []

    @cstorch.trace
    def step(x, n):
        cstorch.step_closure(seen.append)(sum(x[k] for k in range(n)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in (1, 3, 2, 3):
            step(torch.arange(1.0, 5.0), n)
    assert [t.item() for t in seen] == [1, 6, 3, 6]


def test_a_scheduler_stepped_in_the_step_acts_after_every_step(csx):
    model, compiled = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    @cstorch.trace
    def step(x):
        optimizer.zero_grad()
        compiled(x).sum().backward()
        optimizer.step()
        scheduler.step()

    biases = [model.bias.detach().cpu()[0].item()]
    for _ in range(4):
        step(torch.ones(1, 8))
        biases.append(model.bias.detach().cpu()[0].item())
    assert [b - a for a, b in itertools.pairwise(biases)] == pytest.approx([-1, -0.5, -0.25, -0.125])
    assert optimizer.param_groups[0]["lr"] == 1 / 16


@pytest.mark.parametrize("key", ["lr", "weight_decay", "betas", "eps"])
def test_every_number_of_a_param_group_may_change(csx, key):
    changed = {"lr": 0.1, "weight_decay": 0.5, "betas": (0.5, 0.6), "eps": 1.0}[key]

    def train(run):
        model = mlp().to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)

        @run.trace
        def step(x):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        for i, x in enumerate(batches(6, 2, 8)):
            if i == 3:
                optimizer.param_groups[0][key] = changed
            step(x)
        return model, optimizer

    same_as_eager(train)


def test_a_guarded_number_of_a_param_group_makes_another_program(csx):
    def train(run):
        model = nn.Linear(8, 4).to(run.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.0)

        @run.trace
        def step(x):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()

        for i, x in enumerate(batches(4, 1, 8)):
            optimizer.param_groups[0]["weight_decay"] = 0.5 * (i > 1)
            if i == 2 and run.device == "csx":
                with pytest.warns(UserWarning, match="a number that the step branches on"):
                    step(x)
            else:
                step(x)
        return model

    assert same_as_eager(train).count == 2


def test_a_learning_rate_read_in_the_step_is_that_of_each_step(csx):
    model, compiled = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    seen = []

    @cstorch.trace
    def step(x):
        optimizer.zero_grad()
        loss = compiled(x).sum() * optimizer.param_groups[0]["lr"]
        loss.backward()
        optimizer.step()
        cstorch.step_closure(lambda *a: seen.append(a))(optimizer.param_groups[0]["lr"], torch.tensor(0.0))

    for _ in range(3):
        step(torch.zeros(1, 8))
        scheduler.step()
    assert [lr for lr, _ in seen] == [1.0, 0.5, 0.25]
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert type(optimizer.param_groups[0]["lr"]) is float


def test_assigning_a_learning_rate_in_the_step_is_named(csx):
    model, compiled = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    @cstorch.trace
    def step(x):
        optimizer.param_groups[0]["lr"] = 0.5
        compiled(x).sum().backward()
        optimizer.step()

    with pytest.warns(UserWarning, match=r"assigns 0\.5 to param_groups"):
        step(torch.zeros(1, 8))
