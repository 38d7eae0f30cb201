"""When a step becomes another program, and what a program is keyed by."""

import contextlib
import re
import warnings
from collections import defaultdict

import cstorch
import pytest
import torch
from cstorch.errors import ProgramLimitError, TraceError
from programs import batches, linear, same_as_eager
from torch import nn


def test_training_mode_is_a_guard(csx):
    model = nn.BatchNorm1d(4)
    compiled = cstorch.compile(model)
    twin, seen = nn.BatchNorm1d(4), []
    step = cstorch.trace(lambda x: cstorch.step_closure(seen.append)(compiled(x)))
    x = torch.randn(6, 4)
    expected = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for mode in (True, False, True, False):
            model.train(mode)
            twin.train(mode)
            step(x)
            expected.append(twin(x).detach())
    assert len(step.programs) == 2
    for found, truth in zip(seen, expected):
        torch.testing.assert_close(found, truth)


def test_a_new_shape_warns_once_and_works(csx):
    _, compiled = linear()
    seen = []
    step = cstorch.trace(lambda x: cstorch.step_closure(seen.append)(compiled(x).sum()))
    step(torch.ones(2, 8))
    with pytest.warns(UserWarning, match=r"shape \(3, 8\) came where one of shape \(2, 8\).*drop_last=True"):
        step(torch.ones(3, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(torch.ones(4, 8))
        step(torch.ones(2, 8))
    assert len(step.programs) == 3
    assert [s.item() for s in seen] == pytest.approx([n / 2 * seen[0].item() for n in (2, 3, 4, 2)], rel=1e-5)


def test_too_many_programs_are_an_error(csx):
    step = cstorch.trace(lambda x: x.sum())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(1, 9):
            step(torch.ones(n))
        with pytest.raises(ProgramLimitError, match=r"8 programs.*drop_last=True"):
            step(torch.ones(9))


def test_arguments_of_any_structure(csx):
    from collections import namedtuple
    from dataclasses import dataclass

    Pair = namedtuple("Pair", "a b")

    @dataclass
    class Batch:
        x: torch.Tensor
        name: str

    seen = []

    @cstorch.trace
    def step(batch, *, scale, model=None):
        x, pair, data = batch["x"][0], batch["pair"], batch["data"]
        result = {"sum": (x + pair.a - pair.b + data.x) * scale, "name": data.name, "none": None}
        cstorch.step_closure(seen.append)(result)
        return result

    for i in range(3):
        t = torch.full((2,), float(i))
        out = step({"x": [t], "pair": Pair(t, 2 * t), "data": Batch(t, "n")}, scale=2.0, model=nn.Linear)
    assert [s["sum"].tolist() for s in seen] == [[0, 0], [2, 2], [4, 4]]
    assert seen[0]["name"] == out["name"] == "n"


def test_methods_can_be_traced(csx):
    class Trainer:
        def __init__(self):
            self.seen = []

        @cstorch.trace
        def step(self, x):
            self.keep(x * 2)

        @cstorch.step_closure
        def keep(self, y):
            self.seen.append(y.item())

    a, b = Trainer(), Trainer()
    for i in range(3):
        a.step(torch.tensor(float(i)))
    b.step(torch.tensor(5.0))
    assert (a.seen, b.seen) == ([0, 2, 4], [10])


def test_a_step_is_not_called_from_a_closure(csx):
    step = cstorch.trace(lambda x: x.sum())
    with pytest.raises(TraceError, match="was called from a step closure"):
        cstorch.step_closure(lambda: step(torch.ones(2)))()


FLAGS = {
    "grad mode": (torch.no_grad, "torch.is_grad_enabled"),
    "inference": (torch.inference_mode, "torch.is_grad_enabled"),
    "autocast": (lambda: torch.autocast("cpu", dtype=torch.bfloat16), "torch.autocast"),
    "deterministic": (
        lambda: switched(torch.use_deterministic_algorithms, True, False),
        "torch.use_deterministic_algorithms",
    ),
    "default dtype": (lambda: switched(torch.set_default_dtype, torch.float64, torch.float32), "the default dtype"),
}


@contextlib.contextmanager
def switched(setter, there, back):
    setter(there)
    try:
        yield
    finally:
        setter(back)


@pytest.mark.parametrize("name", FLAGS)
def test_a_global_flag_makes_another_program(csx, name):
    manager, words = FLAGS[name]
    step = cstorch.trace(lambda x: x * 2)
    step(torch.ones(2))
    with manager(), pytest.warns(UserWarning, match=words):
        step(torch.ones(2))
    step(torch.ones(2))
    assert len(step.programs) == 2


def test_a_default_dtype_reaches_the_program(csx):
    def train(side):
        step = side.trace(lambda x: side.see(torch.zeros(2, device=x.device).double() + torch.ones(2, device=x.device)))
        for dtype in (torch.float32, torch.float64, torch.float32):
            with switched(torch.set_default_dtype, dtype, torch.float32):
                step(torch.ones(2))

    same_as_eager(train)


CHANGES = {
    "an added group": (
        lambda optimizer, extra: optimizer.add_param_group({"params": list(extra.parameters()), "lr": 0.02}),
        "Adam has another number of param_groups now",
    ),
    "added parameters": (
        lambda optimizer, extra: optimizer.param_groups[0]["params"].extend(extra.parameters()),
        r"param_groups\[0\] of Adam has other parameters now",
    ),
    "a flag": (
        lambda optimizer, extra: optimizer.param_groups[0].update(maximize=True),
        r"param_groups\[0\]\['maximize'\] of Adam was False",
    ),
    "a state that is replaced": (
        lambda optimizer, extra: setattr(optimizer, "state", defaultdict(dict)),
        "Adam was given other state or param_groups",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_layout_of_param_groups_is_a_guard(csx, name):
    change, words = CHANGES[name]

    def train(side, check=False):
        model, extra = nn.Linear(3, 2).to(side.device), nn.Linear(3, 2).to(side.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

        @side.trace
        def step(x):
            optimizer.zero_grad()
            extra.zero_grad()
            (model(x) + extra(x)).square().mean().backward()
            optimizer.step()

        for index, x in enumerate(batches(5, 4, 3)):
            if index == 2:
                change(optimizer, extra)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                step(x)
            if index == 2 and side.device == "csx":
                assert any(re.search(words, str(w.message)) for w in caught)
        return model, extra, optimizer

    assert same_as_eager(train).count == 2
