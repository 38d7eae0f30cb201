"""`backends.csx.debug.retrace_every_iteration`: the Python runs at each call, and a graph that changes is an error."""

import re

import cstorch
import pytest
import torch
from cstorch.errors import TraceError
from programs import batches, line_of, same_as_eager
from torch import nn


@pytest.fixture
def retracing(csx):
    cstorch.backends.csx.debug.retrace_every_iteration = True
    yield csx
    cstorch.backends.csx.debug.retrace_every_iteration = False


def test_the_python_runs_at_each_call_and_training_is_the_same(retracing):
    calls = []

    def train(side):
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(side.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

        @side.trace
        def step(x, i):
            calls.append(side.device)
            optimizer.zero_grad()
            loss = model(x).square().mean() * (i + 1)
            loss.backward()
            optimizer.step()
            side.see(loss)

        for index, x in enumerate(batches(4, 3, 4)):
            step(x, index)
            scheduler.step()
        return model, optimizer

    same_as_eager(train)
    assert calls.count("csx") == 4


def test_an_operation_that_changes_is_named_with_both_lines(retracing):
    turns = iter([True, True, False])

    def body(x):
        y = x + 1
        if next(turns):
            return y * 2  # first
        return y - 2  # second

    step = cstorch.trace(body)
    step(torch.ones(2))
    step(torch.ones(2))
    with pytest.raises(TraceError, match="another graph in this iteration") as caught:
        step(torch.ones(2))
    message = str(caught.value)
    assert re.search(rf"aten\.mul\S*\(%1, 2\) at {re.escape(line_of(body, '# first'))}", message)
    assert re.search(rf"and is aten\.sub\S*\(%1, 2\) at {re.escape(line_of(body, '# second'))}", message)


def test_a_constant_that_changes_is_named(retracing):
    values = iter([1.5, 2.5])
    step = cstorch.trace(lambda x: x * next(values))
    step(torch.ones(2))
    with pytest.raises(TraceError, match=r"1\.5.*2\.5"):
        step(torch.ones(2))


def test_an_operation_more_and_a_closure_less_are_named(retracing):
    more, less = iter([1, 2]), iter([2, 1])
    keep = cstorch.step_closure(lambda x: None)

    def repeat(x):
        for _ in range(next(more)):
            x = x * 2
        return x

    def tell(x):
        for _ in range(next(less)):
            keep("x")
        return x

    for body, words in ((repeat, "is aten.mul"), (tell, "step closures it called")):
        step = cstorch.trace(body)
        step(torch.ones(2))
        with pytest.raises(TraceError, match=words):
            step(torch.ones(2))


def test_flags_are_checked_at_assignment():
    debug = cstorch.backends.csx.debug
    assert debug.retrace_every_iteration is False
    with pytest.raises(ValueError, match=r"csx\.debug\.retrace_every_iteration was set to 1, expected True or False"):
        debug.retrace_every_iteration = 1
    with pytest.raises(AttributeError, match=r"no flag 'retrace'; it has retrace_every_iteration"):
        debug.retrace = True
    with pytest.raises(AttributeError, match="no flag 'nothing'"):
        _ = debug.nothing
    assert repr(debug).startswith("csx.debug(retrace_every_iteration=False")


def test_a_scheduler_in_a_retraced_step_steps_once_a_call(csx, monkeypatch):
    monkeypatch.setattr(cstorch.backends.csx.debug, "retrace_every_iteration", True)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    cstorch.compile(torch.nn.ParameterList([weight]))

    @cstorch.trace
    def step():
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()
        scheduler.step()

    for _ in range(4):
        step()
    assert optimizer.param_groups[0]["lr"] == 0.5**4
    torch.testing.assert_close(weight.detach().cpu(), torch.tensor([1 - (1 + 0.5 + 0.25 + 0.125)]))
