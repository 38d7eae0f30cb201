"""When a step becomes another program, and what a program is keyed by."""

import warnings

import cstorch
import pytest
import torch
from cstorch.errors import ProgramLimitError, TraceError
from programs import linear
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
