"""Every way to clear, accumulate, clip and change gradients in a step, equal to eager."""

import cstorch
import pytest
import torch
from cstorch.errors import ValueReadError
from programs import batches, linear, mlp, same_as_eager, trains_as_eager
from torch import nn


def loss_of(model, x):
    return model(x).square().mean()


# -- clearing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("what", ["optimizer", "model"])
@pytest.mark.parametrize("place", ["first", "before backward", "last"])
def test_zero_grad_anywhere_in_the_step(csx, place, what, set_to_none):
    def body(run, model, optimizer, x, i):
        def zero_grad():
            (optimizer if what == "optimizer" else model).zero_grad(set_to_none=set_to_none)

        if place == "first":
            zero_grad()
        loss = loss_of(model, x)
        if place == "before backward":
            zero_grad()
        loss.backward()
        optimizer.step()
        if place == "last":
            zero_grad()
        run.see(loss)

    trains_as_eager(body)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_in_the_loop(csx, set_to_none):
    def body(run, model, optimizer, x, i):
        loss_of(model, x).backward()
        optimizer.step()

    def between(run, model, optimizer, x, i):
        optimizer.zero_grad(set_to_none=set_to_none)

    trains_as_eager(body, between=between)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_gradients_accumulate_over_batches(csx, set_to_none, first):
    def body(run, model, optimizer, x, i):
        if first and i % 3 == 0:
            optimizer.zero_grad(set_to_none=set_to_none)
        (loss_of(model, x) / 3).backward()
        if (i + 1) % 3 == 0:
            optimizer.step()
            if not first:
                optimizer.zero_grad(set_to_none=set_to_none)

    trains_as_eager(body, steps=13)


def test_a_forgotten_zero_grad_accumulates(csx):
    def body(run, model, optimizer, x, i):
        loss_of(model, x).backward()
        optimizer.step()

    trains_as_eager(body)


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
    optimizer.zero_grad()
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
        return model

    assert same_as_eager(train).count == 2


# -- clipping -----------------------------------------------------------------------------------------------


def clip_norm(parameters):
    return nn.utils.clip_grad_norm_(parameters, 0.05)


CLIPS = {
    "norm": clip_norm,
    "norm inf": lambda p: nn.utils.clip_grad_norm_(p, 0.05, norm_type=float("inf")),
    "norm 1": lambda p: nn.utils.clip_grad_norm_(p, 0.05, norm_type=1),
    "norm foreach": lambda p: nn.utils.clip_grad_norm_(p, 0.05, foreach=True),
    "value": lambda p: nn.utils.clip_grad_value_(p, 0.01),
    "value foreach": lambda p: nn.utils.clip_grad_value_(p, 0.01, foreach=True),
    "by hand": lambda p: [q.grad.mul_(torch.clamp(0.05 / q.grad.norm(), max=1)) for q in p],
    "clamp": lambda p: [q.grad.clamp_(-0.01, 0.01) for q in p],
}


@pytest.mark.parametrize("clip", CLIPS)
def test_clipping(csx, clip):
    def body(run, model, optimizer, x, i):
        optimizer.zero_grad()
        loss_of(model, x).backward()
        norm = CLIPS[clip](list(model.parameters()))
        optimizer.step()
        if isinstance(norm, torch.Tensor):
            run.see(norm)

    trains_as_eager(body, optimizer=lambda p: torch.optim.SGD(p, lr=0.5))


def test_clipping_to_a_norm_that_changes_makes_a_program_for_each_norm(csx):
    def body(run, model, optimizer, x, i):
        optimizer.zero_grad()
        loss_of(model, x).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max(0.1 / (i + 1), 0.03))
        optimizer.step()

    assert trains_as_eager(body, optimizer=lambda p: torch.optim.SGD(p, lr=0.5), steps=8).count == 4


def test_error_if_nonfinite_reads_and_is_refused(csx):
    model, compiled = linear()

    @cstorch.trace
    def step(x):
        compiled(x).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)

    with pytest.raises(ValueReadError, match="error_if_nonfinite=False"):
        step(torch.ones(1, 8))


# -- changing -----------------------------------------------------------------------------------------------


def scaled(run, model, i):
    for p in model.parameters():
        p.grad.mul_(0.5)


def scaled_data(run, model, i):
    for p in model.parameters():
        p.grad.data.mul_(0.5)


def assigned(run, model, i):
    for p in model.parameters():
        p.grad = p.grad * 0.5 + 0.01


def assigned_data(run, model, i):
    for p in model.parameters():
        p.grad.data = p.grad.data.sign()


def noise(run, model, i):
    for p in model.parameters():
        p.grad.add_(torch.randn_like(p.grad), alpha=0.01)


def dropped(run, model, i):
    next(model.parameters()).grad = None


def dropped_and_given(run, model, i):
    weight = next(model.parameters())
    weight.grad = None
    weight.grad = torch.ones_like(weight) * 0.01


def swapped(run, model, i):
    first, *_, last = (m.bias for m in model if hasattr(m, "bias"))
    first.grad, last.grad = last.grad.sum() * torch.ones_like(first), first.grad.sum() * torch.ones_like(last)


def by_step(run, model, i):
    for p in model.parameters():
        p.grad *= 1 / (1 + i)


def seen(run, model, i):
    run.see([p.grad for p in model.parameters()], next(model.parameters()).grad.norm())


@pytest.mark.parametrize(
    "change", [scaled, scaled_data, assigned, assigned_data, noise, dropped, dropped_and_given, swapped, by_step, seen]
)
@pytest.mark.parametrize("clear", ["first", "never"])
def test_gradients_changed_by_the_user(csx, change, clear):
    def body(run, model, optimizer, x, i):
        if clear == "first":
            optimizer.zero_grad()
        loss_of(model, x).backward()
        with torch.no_grad():
            change(run, model, i)
        optimizer.step()

    trains_as_eager(body, optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))


def test_gradients_read_in_a_closure_called_in_the_loop(csx):
    def train(run):
        model = mlp().to(run.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

        @run.trace
        def step(x):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
            return [p.grad for p in model.parameters()]

        for x in batches(4, 4, 8):
            run.see(*step(x))
        return model

    same_as_eager(train)


def test_gradients_left_by_a_step_are_read_and_used_in_the_loop(csx):
    def train(run):
        model = mlp().to(run.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

        @run.trace
        def backward(x):
            optimizer.zero_grad()
            loss_of(model, x).backward()

        for x in batches(4, 4, 8):
            backward(x)
            run.see(sum(p.grad.norm() for p in model.parameters()))
            optimizer.step()
        return model

    same_as_eager(train)


def test_backward_in_one_step_and_the_optimizer_in_another(csx):
    def train(run):
        model = mlp().to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

        @run.trace
        def backward(x):
            loss_of(model, x).backward()

        @run.trace
        def update():
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()

        for x in batches(6, 4, 8):
            backward(x)
            backward(2 * x)
            update()
        return model, optimizer

    same_as_eager(train)
