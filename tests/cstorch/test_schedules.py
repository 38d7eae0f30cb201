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


def triangle(t, up, down):
    t %= up + down
    return t / up if t < up else (up + down - t) / down


def doubled(self):
    return torch.where(self.last_epoch < 10, 2 * self.last_epoch, torch.div(self.last_epoch, 4))


def inverse(self):
    return 1 / (1 + self.last_epoch)


class Family:
    """The schedules of one number, by their names without the suffix of the family."""

    def __init__(self, module, suffix, key, base, **rest):
        self.module, self.suffix, self.key, self.base, self.rest = module, suffix, key, base, rest

    def __getattr__(self, name):
        def make(*arguments):
            made = getattr(self.module, name + self.suffix, None) or getattr(self.module, name)
            combined = ("Sequential", "Chained", "ScalePerParam")  # they have the number of their parts
            return made(*arguments, **({} if name in combined else self.rest))

        return make

    def subclass(self, name, **attributes):
        kind = type("OfUser", (getattr(self.module, name + self.suffix) if name else self.base,), attributes)
        return lambda *arguments: kind(*arguments, **self.rest)


RATE = Family(lrs, "LR", "lr", lrs.LRScheduler)
OTHERS = [
    Family(weight_decay_scheduler, "WD", "weight_decay", weight_decay_scheduler.WeightDecayScheduler),
    Family(scheduler, "Scheduler", "momentum", scheduler.Scheduler, param_group_key="momentum"),
]

CASES = {
    "Constant": (lambda o, m: m.Constant(o, 0.1), lambda t: 0.1),
    "Constant, total_iters": (lambda o, m: m.Constant(o, 0.1, 7), lambda t: 0.1),
    "Linear": (lambda o, m: m.Linear(o, 0.1, 0.5, 20), lambda t: 0.1 + 0.4 * min(t, 20) / 20),
    "Linear, cycle": (
        lambda o, m: m.Linear(o, 0.1, 0.5, 20, True),
        lambda t: 0.1 + 0.4 * t / (20 * max(1, math.ceil(t / 20))),
    ),
    "Polynomial": (lambda o, m: m.Polynomial(o, 0.5, 0.1, 20, 2.0), lambda t: 0.1 + 0.4 * (1 - min(t, 20) / 20) ** 2),
    "Polynomial, cycle": (
        lambda o, m: m.Polynomial(o, 0.5, 0.1, 20, 2.0, True),
        lambda t: 0.1 + 0.4 * (1 - t / (20 * max(1, math.ceil(t / 20)))) ** 2,
    ),
    "Exponential": (lambda o, m: m.Exponential(o, 0.5, 10, 0.9), lambda t: 0.5 * 0.9 ** (t / 10)),
    "Exponential, stairs": (lambda o, m: m.Exponential(o, 0.5, 10, 0.9, True), lambda t: 0.5 * 0.9 ** (t // 10)),
    "InverseExponentialTimeDecay": (
        lambda o, m: m.InverseExponentialTimeDecay(o, 0.5, 2, 10, 0.9),
        lambda t: 0.5 / (1 + 0.9 * t**2 / 10),
    ),
    "InverseExponentialTimeDecay, stairs": (
        lambda o, m: m.InverseExponentialTimeDecay(o, 0.5, 2, 10, 0.9, True),
        lambda t: 0.5 / (1 + 0.9 * (t**2 // 10)),
    ),
    "InverseSquareRootDecay": (
        lambda o, m: m.InverseSquareRootDecay(o, 0.5, 2.0, 9),
        lambda t: 1 / math.sqrt(max(t, 9)),
    ),
    "CosineDecay": (
        lambda o, m: m.CosineDecay(o, 0.5, 0.1, 20),
        lambda t: 0.1 + 0.2 * (1 + math.cos(math.pi * min(t, 20) / 20)),
    ),
    "Sequential": (
        lambda o, m: m.Sequential(
            o, [m.Linear(o, 0.0, 0.5, 10), m.Constant(o, 0.3), m.Linear(o, 0.5, 0.0, 10)], [10, 20]
        ),
        lambda t: 0.05 * t if t < 10 else 0.3 if t < 20 else 0.5 - 0.05 * min(t - 20, 10),
    ),
    "PiecewiseConstant": (
        lambda o, m: m.PiecewiseConstant(o, [0.1, 0.2, 0.3], [5, 9]),
        lambda t: 0.1 if t < 5 else 0.2 if t < 9 else 0.3,
    ),
    "MultiStep": (lambda o, m: m.MultiStep(o, 0.5, 0.1, [3, 7]), lambda t: 0.5 * 0.1 ** ((t >= 3) + (t >= 7))),
    "Step": (lambda o, m: m.Step(o, 0.5, 7, 0.5), lambda t: 0.5 * 0.5 ** (t // 7)),
    "CosineAnnealing": (
        lambda o, m: m.CosineAnnealing(o, 0.1, 7, 0.01),
        lambda t: 0.01 + 0.09 * (1 + math.cos(math.pi * t / 7)) / 2,
    ),
    "CosineAnnealingWarmRestarts": (lambda o, m: m.CosineAnnealingWarmRestarts(o, 0.1, 5, 2, 0.01), restarts),
    "Lambda": (lambda o, m: m.subclass("Lambda", set_value_lambda=inverse)(o, 0.5), lambda t: 0.5 / (1 + t)),
    "Lambda, of the step": (
        lambda o, m: m.subclass("Lambda", set_value_lambda=lambda self: lambda t: t + 1)(o, 0.5),
        lambda t: 0.5 * (t + 1),
    ),
    "Multiplicative": (lambda o, m: m.Multiplicative(o, 0.5, 0.9), lambda t: 0.5 * 0.9**t),
    "Cyclic": (lambda o, m: m.Cyclic(o, 0.1, 0.5, 4, 6), lambda t: 0.1 + 0.4 * triangle(t, 4, 6)),
    "Cyclic, as fast down": (lambda o, m: m.Cyclic(o, 0.1, 0.5, 7), lambda t: 0.1 + 0.4 * triangle(t, 7, 7)),
    "Cyclic, halved": (
        lambda o, m: m.Cyclic(o, 0.1, 0.5, 4, 6, "triangular2"),
        lambda t: 0.1 + 0.4 * triangle(t, 4, 6) / 2 ** (t // 10),
    ),
    "Cyclic, powers of the cycle": (
        lambda o, m: m.Cyclic(o, 0.1, 0.5, 4, 6, "exp_range", 0.9),
        lambda t: 0.1 + 0.4 * triangle(t, 4, 6) * 0.9 ** (1 + t // 10),
    ),
    "Cyclic, powers of the step": (
        lambda o, m: m.Cyclic(o, 0.1, 0.5, 4, 6, "exp_range", 0.9, "iterations"),
        lambda t: 0.1 + 0.4 * triangle(t, 4, 6) * 0.9**t,
    ),
    "OneCycle": (
        lambda o, m: m.OneCycle(o, 0.02, 0.5, 50, 0.3, 100, False, "linear"),
        lambda t: 0.02 + 0.48 * t / 14 if t < 14 else max(0.0002, 0.5 - 0.4998 * (t - 14) / 35),
    ),
    "ScalePerParam": (
        lambda o, m: m.ScalePerParam(o, m.Step(o, 0.5, 7, 0.5)),
        lambda t: 0.5 * 0.5 ** (t // 7) * 3,
    ),
    "Chained": (
        lambda o, m: m.Chained([m.Step(o, 0.5, 7, 0.5), m.Exponential(o, 0.5, 10, 0.9)]),
        lambda t: 0.5 * 0.5 ** (t // 7) * 0.9 ** (t / 10),
    ),
    "of a user": (lambda o, m: m.subclass("", _get_closed_form=doubled)(o), lambda t: 2 * t if t < 10 else t / 4),
}


def optimizer():
    return torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(2))], "adjust_learning_rate": 3}], lr=9.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", CASES)
def test_fifty_steps_follow_the_formula(csx, name):
    make, formula = CASES[name]
    outside = optimizer()
    schedule = make(outside, RATE)
    inside = optimizer()
    traced_schedule = make(inside, RATE)
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
    resumed = make(other, RATE)
    resumed.load_state_dict(half)
    assert other.param_groups[0]["lr"] == pytest.approx(formula(25), rel=1e-6)


@pytest.mark.parametrize("family", OTHERS, ids=lambda f: f.key)
@pytest.mark.parametrize("name", CASES)
def test_any_number_follows_the_formula_and_no_other_changes(name, family):
    make, formula = CASES[name]
    made = optimizer()
    schedule = make(made, family)
    before = {key: value for key, value in made.param_groups[0].items() if key != family.key}
    for t in range(50):
        assert made.param_groups[0][family.key] == pytest.approx(formula(t), rel=1e-6)
        schedule.step()
    assert before == {key: value for key, value in made.param_groups[0].items() if key != family.key}


@pytest.mark.parametrize("family", [RATE, *OTHERS], ids=lambda f: f.key)
def test_every_schedule_has_a_formula_here(family):
    names = {name.split(",")[0] for name in CASES}
    kinds = {name: kind for name, kind in vars(family.module).items() if isinstance(kind, type)}
    made = [name for name, kind in kinds.items() if issubclass(kind, scheduler.Scheduler)]
    bases = {"Scheduler", "LRScheduler", "WeightDecayScheduler", "ChainedScheduler"}
    assert {name.removesuffix(family.suffix) for name in made if name not in bases} <= names


@pytest.mark.parametrize("mode", ["triangular", "triangular2", "exp_range"])
def test_cyclic_is_that_of_torch(mode):
    ours, theirs = optimizer(), optimizer()
    scale = "iterations" if mode == "exp_range" else "cycle"
    a = lrs.CyclicLR(ours, 0.1, 0.5, 4, 6, mode, 0.9, scale)
    b = of_torch.CyclicLR(theirs, 0.1, 0.5, 4, 6, mode, 0.9, cycle_momentum=False)
    for _ in range(40):
        assert ours.param_groups[0]["lr"] == pytest.approx(theirs.param_groups[0]["lr"])
        a.step()
        theirs.step()
        b.step()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda o: lrs.CyclicLR(o, 0.1, 0.5, mode="square"), "mode is 'square'"),
        (lambda o: lrs.CyclicLR(o, 0.1, 0.5, scale_mode="step"), "scale_mode is 'step'"),
        (lambda o: lrs.OneCycleLR(o, 0.1, 0.5, anneal_strategy="no"), "anneal_strategy is 'no'"),
        (lambda o: lrs.CosineAnnealingWarmRestarts(o, 0.1, 0), "T_0=0 and T_mult=1"),
        (lambda o: lrs.PiecewiseConstantLR(o, [0.1], [3]), r"1 values and the milestones \[3\]"),
        (lambda o: lrs.ChainedLR([]), "no schedulers"),
    ],
)
def test_settings_that_make_no_schedule(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong(optimizer())


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
