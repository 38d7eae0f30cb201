"""Every scheduler of torch.optim, stepped around the traced step, at its end and at its beginning, as in eager."""

import warnings

import cstorch
import pytest
import torch
from cstorch.errors import TraceError
from programs import batches, linear, same_as_eager
from torch import nn
from torch.optim import lr_scheduler as lrs
from torch.optim.swa_utils import SWALR

SCHEDULERS = {
    "LambdaLR": lambda o: lrs.LambdaLR(o, [lambda e: 1 / (1 + e), lambda e: 0.9**e]),
    "MultiplicativeLR": lambda o: lrs.MultiplicativeLR(o, lambda e: 0.9 - 0.01 * e),
    "StepLR": lambda o: lrs.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lrs.MultiStepLR(o, [1, 3, 4], 0.5),
    "ConstantLR": lambda o: lrs.ConstantLR(o, 0.3, 4),
    "LinearLR": lambda o: lrs.LinearLR(o, 0.1, 1.0, 5),
    "ExponentialLR": lambda o: lrs.ExponentialLR(o, 0.8),
    "PolynomialLR": lambda o: lrs.PolynomialLR(o, 6, 2.0),
    "CosineAnnealingLR": lambda o: lrs.CosineAnnealingLR(o, 5, 1e-4),
    "CosineAnnealingWarmRestarts": lambda o: lrs.CosineAnnealingWarmRestarts(o, 2, 2),
    "SequentialLR": lambda o: lrs.SequentialLR(
        o, [lrs.ConstantLR(o, 0.1, 2), lrs.LinearLR(o, 1.0, 0.2, 3), lrs.ExponentialLR(o, 0.7)], [2, 5]
    ),
    "ChainedScheduler": lambda o: lrs.ChainedScheduler([lrs.ConstantLR(o, 0.1, 3), lrs.ExponentialLR(o, 0.8)], o),
    "CyclicLR": lambda o: lrs.CyclicLR(o, 1e-3, 3e-2, 2, 3, mode="triangular2"),
    "OneCycleLR": lambda o: lrs.OneCycleLR(o, [0.03, 0.05], total_steps=9),
    "SWALR": lambda o: SWALR(o, 5e-3, 3, "cos"),
}
OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.02, momentum=0.9),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.02),
    "adamw, tensor lr": lambda groups: torch.optim.AdamW(groups, lr=torch.tensor(0.02)),
}


def agrees(scheduler, optimizer, place, expect_programs=1):
    def train(run):
        model = nn.Linear(8, 4).to(run.device)
        first, *rest = model.parameters()
        groups = [{"params": [first]}, {"params": rest, "lr": 0.01}]
        made = OPTIMIZERS[optimizer](groups)
        schedule = SCHEDULERS[scheduler](made)

        @run.trace
        def step(x):
            if place == "before":
                schedule.step()
            made.zero_grad()
            loss = (model(x) - 1).square().mean()
            loss.backward()
            made.step()
            if place == "after":
                schedule.step()
            run.see(loss, loss.detach() * schedule.get_last_lr()[0])
            run.see(*map(float_of, schedule.get_last_lr()), float_of(made.param_groups[1]["lr"]))

        for x in batches(8, 3, 8):
            step(x)
            if place == "around":
                schedule.step()
        return model, made, {k: v for k, v in schedule.state_dict().items() if isinstance(v, (int, float))}

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of|To get the last learning rate|.*epoch parameter")
        assert same_as_eager(train).count == expect_programs


def float_of(number):
    return number if isinstance(number, float) else number * 1


@pytest.mark.parametrize("place", ["around", "after", "before"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_scheduler_is_that_of_eager(csx, scheduler, place):
    agrees(scheduler, "sgd", place)


@pytest.mark.parametrize("place", ["around", "after", "before"])
@pytest.mark.parametrize("optimizer", ["adamw", "adamw, tensor lr"])
def test_betas_and_tensor_learning_rates_follow(csx, optimizer, place):
    agrees("OneCycleLR", optimizer, place)
    agrees("StepLR", optimizer, place)


def test_a_plateau_is_seen_outside_the_step_and_inside(csx):
    def train(run, inside):
        model = nn.Linear(8, 4).to(run.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        schedule = lrs.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)

        @run.trace
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            if inside:
                schedule.step(loss.detach())
            return loss

        for i, x in enumerate(batches(8, 3, 8)):
            loss = step(x)
            if not inside:
                schedule.step(1.0 + i % 3)
            run.see(loss)
        return model, optimizer

    for inside in (False, True):
        assert same_as_eager(lambda run, inside=inside: train(run, inside)).count == 1


def test_a_number_that_a_plateau_is_still_to_make_is_refused(csx):
    model, compiled = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = lrs.ReduceLROnPlateau(optimizer)

    @cstorch.trace
    def step(x):
        loss = compiled(x).sum()
        loss.backward()
        schedule.step(loss)
        optimizer.step()

    with pytest.raises(TraceError, match=r"param_groups\[0\]\['lr'\].*after ReduceLROnPlateau\.step\(\)"):
        step(torch.ones(1, 8))


def test_a_number_in_a_text_after_a_scheduler_is_refused(csx):
    model, compiled = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = lrs.ExponentialLR(optimizer, 0.5)

    @cstorch.trace
    def step(x):
        optimizer.zero_grad()
        compiled(x).sum().backward()
        optimizer.step()
        schedule.step()
        return f"lr {schedule.get_last_lr()[0]}"

    assert step(torch.ones(1, 8)) == "lr 0.05"
    with pytest.raises(TraceError, match=r"ExponentialLR\['_last_lr'\]\[0\]\) has changed"):
        step(torch.ones(1, 8))


def test_a_failed_trace_leaves_scheduler_and_optimizer_as_they_were(csx):
    model, compiled = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.1)
    schedule = lrs.ExponentialLR(optimizer, 0.5)
    before = dict(schedule.state_dict())

    @cstorch.trace
    def step(x):
        compiled(x).sum().backward()
        optimizer.step()
        schedule.step()
        raise KeyError

    with pytest.raises(KeyError):
        step(torch.ones(1, 8))
    assert schedule.state_dict() == before
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.state == {}


READS = {
    "last_epoch": lambda schedule, optimizer: schedule.last_epoch + 1,
    "a comparison": lambda schedule, optimizer: 2.0 if schedule.last_epoch > 3 else 1.0,
    "base_lrs": lambda schedule, optimizer: schedule.base_lrs[0] * schedule.gamma,
    "private": lambda schedule, optimizer: schedule._last_lr[0] * schedule._step_count,
    "param_groups": lambda schedule, optimizer: optimizer.param_groups[0]["lr"] + optimizer.param_groups[0]["momentum"],
    "defaults": lambda schedule, optimizer: optimizer.defaults["lr"],
}


@pytest.mark.parametrize("place", ["around", "inside"])
@pytest.mark.parametrize("name", READS)
def test_what_a_step_reads_of_a_scheduler_is_that_of_each_run(csx, name, place):
    def train(run):
        model = nn.Linear(8, 4).to(run.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = lrs.ExponentialLR(optimizer, 0.8)

        @run.trace
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean() * READS[name](schedule, optimizer)
            loss.backward()
            optimizer.step()
            if place == "inside":
                schedule.step()
            run.see(loss)

        for x in batches(6, 3, 8):
            step(x)
            if place == "around":
                schedule.step()
                schedule.gamma *= 0.9
                schedule.base_lrs[0] *= 0.9
                optimizer.defaults["lr"] *= 0.5
        return model, optimizer

    assert same_as_eager(train).count == (2 if name == "a comparison" else 1)
