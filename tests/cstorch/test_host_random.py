"""Random numbers that a step draws in Python: those of eager at every step, or named with their line."""

import random
import types
import warnings

import cstorch
import numpy as np
import pytest
import torch
from cstorch.errors import TraceError
from programs import batches, line_of, same_as_eager
from torch import nn


def _with(draw):
    """A program that draws with `draw(x, generator)` from generators that are found in different places."""

    def train(side, generator):
        random.seed(3)
        np.random.seed(3)
        model = nn.Linear(4, 4).to(side.device)
        model.rng = generator
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        places = types.SimpleNamespace(rng=generator), {"rng": generator}

        @side.trace
        def step(x, rng):
            optimizer.zero_grad()
            loss = (draw(model(x), generator) * draw(x, places[0].rng)).mean()
            loss = loss * draw(1.0, places[1]["rng"]) + draw(1, model.rng) * draw(loss, rng)
            loss.backward()
            optimizer.step()
            side.see(loss)

        for x in batches(6, 3, 4):
            step(x, generator)
        return model, random.random(), np.random.rand(), generator.random()

    return train


GENERATORS = {
    "random.Random": lambda: random.Random(5),
    "Generator": lambda: np.random.default_rng(5),
    "RandomState": lambda: np.random.RandomState(5),
}
NUMBERS = {
    "random": lambda x, rng: x * random.random() + random.uniform(-1, 1),
    "integers": lambda x, rng: x + random.randint(0, 5) - random.choice([1, 2, 3]),
    "numpy": lambda x, rng: x * np.random.beta(0.4, 0.4) + np.random.rand() * np.random.randint(4),
    "a draw of a draw": lambda x, rng: x * random.gauss(random.random(), 0.1),
    "a generator": lambda x, rng: x * rng.random() + rng.uniform(1, 2),
}


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_is_drawn_is_data(csx, name, generator):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same_as_eager(lambda side: _with(NUMBERS[name])(side, GENERATORS[generator]())).count == 1


CHOICES = {
    "a comparison": lambda x, rng: x if random.random() < 0.5 else -x,
    "a chosen string": lambda x, rng: getattr(x, random.choice(["sin", "cos"]))(),
    "a flag": lambda x, rng: x if random.choice([True, False]) else 2 * x,
    "a count": lambda x, rng: x[: 1 + np.random.randint(3)].sum(),
    "a layer that is dropped": lambda x, rng: x * 2 if rng.random() < 0.5 else x,
    "before a draw that is data": lambda x, rng: (x if random.random() < 0.5 else -x) * random.random(),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_draw_may_choose_between_programs(csx, name):
    def train(side):
        random.seed(3)
        np.random.seed(3)
        rng = np.random.default_rng(4)
        step = side.trace(lambda x: side.see(CHOICES[name](x, rng)))
        for x in batches(12, 3, 4):
            step(x)
        return random.random(), np.random.rand(), rng.random()

    assert 2 <= same_as_eager(train).count <= 3


def test_a_draw_that_chooses_after_a_scheduler_has_stepped_is_refused(csx):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    @cstorch.trace
    def step(x):
        optimizer.step()
        schedule.step()
        return x if random.random() < 0.5 else -x

    random.seed(3)
    with pytest.raises(TraceError, match=r"random\(\).* has changed, after something"):
        for _ in range(12):
            step(torch.ones(2))


def _shuffled(x):
    return x * np.random.permutation(4).mean()  # here


def _sampled(x):
    return x[random.sample(range(4), 2)]  # here


@pytest.mark.parametrize("function", [_shuffled, _sampled])
def test_other_draws_are_named_with_their_line(csx, function):
    with pytest.warns(UserWarning, match=f"draws random numbers on the host with .*{line_of(function, '# here')}"):
        cstorch.trace(lambda x: function(x))(torch.ones(4))


def test_an_array_of_a_generator_is_named_with_its_line(csx):
    rng = np.random.default_rng(0)

    def step(x):
        return x * torch.from_numpy(rng.random(4))  # here

    with pytest.warns(UserWarning, match=f"with a numpy.random.Generator at {line_of(step, '# here')}"):
        cstorch.trace(step)(torch.ones(4))
    assert type(rng) is np.random.Generator


def test_functions_imported_by_name_are_noticed(csx):
    bound = random.random

    with pytest.warns(UserWarning, match="draws random numbers on the host with random"):
        cstorch.trace(lambda x: x * bound())(torch.ones(4))
