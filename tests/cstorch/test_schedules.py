"""Every schedule of cstorch.optim against a formula written by hand, over 50 steps, in a traced step and outside."""

import math

import cstorch
import pytest
import torch
from cstorch.optim import lr_scheduler as lrs
from cstorch.optim import scheduler, weight_decay_scheduler
from torch import nn
from torch.optim import lr_scheduler as of_torch


def restarts(t):
    length = 5
    while t >= length:
        t, length = t - length, length * 2
    return 0.01 + 0.09 * (1 + math.cos(math.pi * t / length)) / 2


class Doubled(lrs.LRScheduler):
    def _get_closed_form(self):
        return torch.where(self.last_epoch < 10, 2 * self.last_epoch, torch.div(self.last_epoch, 4))


class Inverse(lrs.LambdaLR):
    def set_value_lambda(self):
        return 1 / (1 + self.last_epoch)


CASES = {
    "Constant": (lambda o: lrs.ConstantLR(o, 0.1), lambda t: 0.1),
    "Linear": (lambda o: lrs.LinearLR(o, 0.1, 0.5, 20), lambda t: 0.1 + 0.4 * min(t, 20) / 20),
    "Linear, cycle": (
        lambda o: lrs.LinearLR(o, 0.1, 0.5, 20, cycle=True),
        lambda t: 0.1 + 0.4 * t / (20 * max(1, math.ceil(t / 20))),
    ),
    "Polynomial": (lambda o: lrs.PolynomialLR(o, 0.5, 0.1, 20, 2.0), lambda t: 0.1 + 0.4 * (1 - min(t, 20) / 20) ** 2),
    "Exponential": (lambda o: lrs.ExponentialLR(o, 0.5, 10, 0.9), lambda t: 0.5 * 0.9 ** (t / 10)),
    "Exponential, stairs": (lambda o: lrs.ExponentialLR(o, 0.5, 10, 0.9, True), lambda t: 0.5 * 0.9 ** (t // 10)),
    "InverseExponentialTimeDecay": (
        lambda o: lrs.InverseExponentialTimeDecayLR(o, 0.5, 2, 10, 0.9),
        lambda t: 0.5 / (1 + 0.9 * t**2 / 10),
    ),
    "InverseSquareRoot": (lambda o: lrs.InverseSquareRootDecayLR(o, 0.5, 2.0, 9), lambda t: 1 / math.sqrt(max(t, 9))),
    "CosineDecay": (
        lambda o: lrs.CosineDecayLR(o, 0.5, 0.1, 20),
        lambda t: 0.1 + 0.2 * (1 + math.cos(math.pi * min(t, 20) / 20)),
    ),
    "Sequential": (
        lambda o: lrs.SequentialLR(
            o, [lrs.LinearLR(o, 0.0, 0.5, 10), lrs.ConstantLR(o, 0.3), lrs.LinearLR(o, 0.5, 0.0, 10)], [10, 20]
        ),
        lambda t: 0.05 * t if t < 10 else 0.3 if t < 20 else 0.5 - 0.05 * min(t - 20, 10),
    ),
    "PiecewiseConstant": (
        lambda o: lrs.PiecewiseConstantLR(o, [0.1, 0.2, 0.3], [5, 9]),
        lambda t: 0.1 if t < 5 else 0.2 if t < 9 else 0.3,
    ),
    "MultiStep": (lambda o: lrs.MultiStepLR(o, 0.5, 0.1, [3, 7]), lambda t: 0.5 * 0.1 ** ((t >= 3) + (t >= 7))),
    "Step": (lambda o: lrs.StepLR(o, 0.5, 7, 0.5), lambda t: 0.5 * 0.5 ** (t // 7)),
    "CosineAnnealing": (
        lambda o: lrs.CosineAnnealingLR(o, 0.1, 7, 0.01),
        lambda t: 0.01 + 0.09 * (1 + math.cos(math.pi * t / 7)) / 2,
    ),
    "WarmRestarts": (lambda o: lrs.CosineAnnealingWarmRestarts(o, 0.1, 5, 2, 0.01), restarts),
    "Lambda": (lambda o: Inverse(o, 0.5), lambda t: 0.5 / (1 + t)),
    "Multiplicative": (lambda o: lrs.MultiplicativeLR(o, 0.5, 0.9), lambda t: 0.5 * 0.9**t),
    "Cyclic": (
        lambda o: lrs.CyclicLR(o, 0.1, 0.5, 4, 6, "triangular2"),
        lambda t: 0.1 + 0.4 * (t % 10 / 4 if t % 10 < 4 else (10 - t % 10) / 6) / 2 ** (t // 10),
    ),
    "ScalePerParam": (
        lambda o: lrs.ScalePerParamLR(o, lrs.StepLR(o, 0.5, 7, 0.5)),
        lambda t: 0.5 * 0.5 ** (t // 7) * 3,
    ),
    "Chained": (
        lambda o: lrs.ChainedLR([lrs.StepLR(o, 0.5, 7, 0.5), lrs.ExponentialLR(o, 0.5, 10, 0.9)]),
        lambda t: 0.5 * 0.5 ** (t // 7) * 0.9 ** (t / 10),
    ),
    "of a user": (Doubled, lambda t: 2 * t if t < 10 else t / 4),
}


def optimizer():
    return torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(2))], "adjust_learning_rate": 3}], lr=9.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", CASES)
def test_fifty_steps_follow_the_formula(csx, name):
    make, formula = CASES[name]
    outside = optimizer()
    schedule = make(outside)
    inside = optimizer()
    traced_schedule = make(inside)
    (_parameter,) = inside.param_groups[0]["params"]
    used, written = [], []

    @cstorch.step_closure
    def keep(value, last):
        used.append(value.item())
        written.append(float(last[0]))

    @cstorch.trace
    def step(x):
        value = inside.param_groups[0]["lr"] * x
        traced_schedule.step()
        keep(value, traced_schedule.get_last_lr())

    half = None
    for t in range(50):
        assert outside.param_groups[0]["lr"] == pytest.approx(formula(t), rel=1e-6)
        assert schedule.get_last_lr() == [outside.param_groups[0]["lr"]]
        step(torch.ones(1))
        schedule.step()
        if t == 24:
            half = schedule.state_dict()
    assert used == pytest.approx([formula(t) for t in range(50)], rel=1e-5)
    assert written == pytest.approx([formula(t + 1) for t in range(50)], rel=1e-6)
    assert len(step.programs) == 1
    other = optimizer()
    resumed = make(other)
    resumed.load_state_dict(half)
    assert other.param_groups[0]["lr"] == pytest.approx(formula(25), rel=1e-6)


@pytest.mark.parametrize(("three", "shape"), [(False, "cos"), (True, "linear")])
def test_one_cycle_is_that_of_torch(three, shape):
    ours, theirs = optimizer(), optimizer()
    a = lrs.OneCycleLR(ours, 0.02, 0.5, 50, 0.3, 100, three, shape)
    b = of_torch.OneCycleLR(theirs, 0.5, 50, div_factor=25, final_div_factor=100, three_phase=three,
                            anneal_strategy=shape, cycle_momentum=False)  # fmt: skip
    for _ in range(49):
        assert ours.param_groups[0]["lr"] == pytest.approx(theirs.param_groups[0]["lr"])
        a.step()
        theirs.step()
        b.step()


def test_weight_decay_any_key_and_tags():
    p, q = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    made = torch.optim.SGD([{"params": [p], "tags": {"a"}}, {"params": [q]}], lr=0.1, momentum=0.5)
    decay = weight_decay_scheduler.LinearWD(made, 0.4, 0.0, 4, param_group_tags="a")
    momentum = scheduler.StepScheduler(made, 0.8, 1, 0.5, param_group_key="momentum")
    decay.step()
    momentum.step()
    assert [g["weight_decay"] for g in made.param_groups] == [pytest.approx(0.3), 0]
    assert [g["momentum"] for g in made.param_groups] == [0.4, 0.4]
    with pytest.raises(ValueError, match="Pass param_group_key"):
        scheduler.StepScheduler(made, 0.8, 1, 0.5)
    with pytest.raises(ValueError, match="one scheduler more than milestones"):
        lrs.SequentialLR(made, [lrs.ConstantLR(made, 0.1)], [3])


def test_schedules_by_name():
    made = optimizer()
    schedule = cstorch.optim.configure_lr_scheduler(
        made,
        [
            {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 0.5, "total_iters": 10},
            {"scheduler": "ConstantLR", "learning_rate": 0.3},
        ],
    )
    assert [schedule.values_at(t)[0] for t in (0, 5, 10)] == [0, 0.25, 0.3]
    with pytest.raises(ValueError, match="no Scheduler named 'No'"):
        cstorch.optim.configure_lr_scheduler(made, {"scheduler": "No"})
