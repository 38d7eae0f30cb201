"""A traced step's Python runs once, and a failed trace leaves nothing behind."""

import cstorch
import pytest
import torch
import torch.nn.functional as F
from programs import linear, to_cpu


def test_a_generator_is_consumed_once(csx):
    model, compiled = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parameters = (p for p in model.parameters())
    clipped = []

    @cstorch.trace
    def step(x):
        optimizer.zero_grad()
        compiled(x).square().sum().backward()
        clipped.append(torch.nn.utils.clip_grad_norm_(list(parameters), 0.01) is not None)
        optimizer.step()

    before = model.weight.detach().cpu()
    for _ in range(5):
        step(torch.ones(2, 8))
    assert clipped == [True]
    assert (model.weight.detach().cpu() - before).norm() <= 5 * 0.1 * 0.01 + 1e-6


def test_an_exception_in_a_step_leaves_the_model_as_it_was(csx):
    model, compiled = linear()
    before = model.weight.detach().cpu().clone()

    @cstorch.trace
    def step(x):
        compiled(x).sum().backward()
        with torch.no_grad():
            model.weight.add_(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        step(torch.ones(2, 8))
    assert model.weight.grad is None
    assert torch.equal(model.weight.detach().cpu(), before)
    assert torch.equal(compiled(torch.ones(2, 8).to("csx")).shape and model(torch.ones(2, 8).to("csx")).detach().cpu(),
                       F.linear(torch.ones(2, 8), before, model.bias.detach().cpu()))  # fmt: skip


def test_an_optimizer_closure_is_run_once(csx):
    model, compiled = linear()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    calls = []

    @cstorch.trace
    def step(x):
        def closure():
            calls.append(1)
            optimizer.zero_grad()
            loss = compiled(x).square().sum()
            loss.backward()
            return loss

        return optimizer.step(closure)

    before = to_cpu(model.weight).clone()
    for _ in range(3):
        step(torch.ones(1, 8))
    assert calls == [1]
    assert (to_cpu(model.weight) - before).abs().max() > 0.1
