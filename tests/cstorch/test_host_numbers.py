"""The whole of Python's number protocol on host numbers: as data, or as a guard, but never frozen."""

import copy
import itertools
import math
import operator
import warnings

import cstorch
import numpy as np
import pytest
import torch
import torch.nn.functional as F

X = torch.arange(1.0, 13.0).reshape(3, 4)


def agrees(function, numbers, limit=8):
    """`function(x, n)` gives the same traced and eager, for each of `numbers` in turn; how many programs it took."""
    seen = []
    step = cstorch.trace(lambda x, n: cstorch.step_closure(seen.append)(function(x, n)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in numbers:
            step(X, n)
    for n, found in zip(numbers, seen, strict=True):
        same(found, function(X, n))
    assert len(step.programs) <= limit
    return len(step.programs)


def same(found, expected):
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected):
            same(a, b)
    elif isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected)
    else:
        expected = expected.item() if isinstance(expected, np.generic) else expected
        assert type(found) is type(expected)
        assert found == expected or found != found


AS_DATA = {
    "arithmetic": lambda x, n: [x * n, n - x, n / x, x**n, (n + 1) * x.sum(), -n * x, +n, abs(n) + x],
    "into 0-d": lambda x, n: [
        x.sum() * n,
        n + x.sum(),
        x.sum() / (n + 1),
        x.sum().long() * n,
        (x.sum() > n),
        n / 2 - x.sum(),
        x.sum() * (n / 2),
    ],
    "divmod": lambda x, n: [divmod(n, 3)[0] * x, divmod(n, 3)[1] * x, divmod(100, n + 1)[1]],
    "round": lambda x, n: [round(n / 7, 2) * x, round(n / 3) * x, round(n)],
    "floor": lambda x, n: [math.floor(n / 3) * x, math.ceil(n / 3), math.trunc(n / 3)],
    "math": lambda x, n: [x * (1 + math.cos(math.pi * n / 10)), math.sqrt(n), math.exp(-n), math.pow(n, 2)],
    "bits": lambda x, n: [n & 3, n | 8, n ^ 5, ~n, n << 1, n >> 1, 1 << n],
    "power": lambda x, n: [0.9**n * x, n**2, pow(n, 3, 5)],
    "numpy scalars": lambda x, n: [np.float64(2.0) * n * x, float(0) + n * np.float64(3.0), n + np.int64(2)],
    "comparisons of tensors": lambda x, n: [x > n, n >= x, x == n],
    "torch functions": lambda x, n: [torch.add(x, x, alpha=n), torch.full_like(x, n), x.clone().fill_(n)],
    "lists": lambda x, n: [torch.tensor([n, 2 * n]), torch.as_tensor(n / 2), x + torch.tensor(n)],
    "copies": lambda x, n: [copy.deepcopy([copy.copy(n)])[0] * x],
    "sums": lambda x, n: [sum([n, n, 1]), math.hypot(n, 1.0), math.fmod(n, 3)],
    "a returned expression": lambda x, n: [n * 2, n / 4, (n, [n])],
}


@pytest.mark.parametrize("name", AS_DATA)
def test_a_number_is_data(csx, name):
    assert agrees(AS_DATA[name], [1, 2, 5, 3, 9]) == 1


AS_GUARD = {
    "comparison": lambda x, n: x if n > 3 else -x,
    "chained": lambda x, n: x if 1 < n <= 3 else -x,
    "truth": lambda x, n: x if n % 2 else -x,
    "not": lambda x, n: [not n, bool(n - 1)],
    "min and max": lambda x, n: [min(n, 3) * x, max(2, n) * x, min([n, 4]), sorted([n, 2])],
    "range": lambda x, n: sum(x[0, k % 4] for k in range(n)),
    "index": lambda x, n: [x[n % 3], x[:, n % 4], x[:n], x[n % 2 : 3], x[:, : n % 3], [1, 2, 3, 4][n % 4]],
    "f-string": lambda x, n: f"{n} {n / 2:.2f} {n!r}" + str(n),
    "percent format": lambda x, n: "%d %s" % (n, n),  # noqa: UP031
    "dict key": lambda x, n: {1: x, 2: -x}.get(n, 0 * x),
    "set": lambda x, n: [n in {1, 2}, n in [1, 3], hash(n)],
    "repeat": lambda x, n: ["a" * n, [0] * n],
    "sizes": lambda x, n: [torch.zeros(n), torch.arange(n), x.new_ones(n, 2), x.repeat(n, 1), torch.full((n,), n)],
    "views": lambda x, n: [x.expand(1, 3, 4).expand(n, 3, 4), x.roll(n, 0), x.narrow(0, 0, 1 + n % 2)],
    "full": lambda x, n: torch.full((2,), n / 2),
    "int and float": lambda x, n: [int(n / 2), float(n), int(n) * x, complex(n)],
    "methods": lambda x, n: [n.bit_length(), n.as_integer_ratio(), (n / 2).is_integer(), (n / 2).hex(), n.real],
    "dropout p": lambda x, n: F.dropout(x, p=n / 10, training=False),
    "eps": lambda x, n: F.layer_norm(x, (4,), eps=n / 10),
    "clamp": lambda x, n: [x.clamp(max=n), x.clamp(n, n + 1)],
    "topk": lambda x, n: x.topk(1 + n % 3).values,
    "numpy functions": lambda x, n: [float(np.sqrt(n)), np.clip(n, 2, 3).item(), np.arange(n).tolist()],
    "math integers": lambda x, n: [math.gcd(n, 6), math.factorial(n), math.comb(6, n)],
    "type": lambda x, n: [isinstance(n, int), isinstance(n, float), isinstance(n / 2, float)],
    "match": lambda x, n: operator.index(n),
    "negative to a fraction": lambda x, n: (-n) ** 0.5,
}


@pytest.mark.parametrize("name", AS_GUARD)
def test_a_number_is_a_guard(csx, name):
    agrees(AS_GUARD[name], [1, 2, 5, 2, 1])


def test_int_guards_on_what_it_gives(csx):
    assert agrees(lambda x, n: int(n / 4) * x, [0, 1, 2, 3, 4, 5]) == 2


def test_a_number_of_numpy_is_a_number(csx):
    agrees(lambda x, n: [x * n, n + 1.0], [np.float64(0.5), np.float64(1.5), np.float64(2.5)], limit=1)
    for kind in (np.float32, np.int64):
        seen = []
        step = cstorch.trace(lambda x, n, seen=seen: cstorch.step_closure(seen.append)(x * n))
        for i in range(10):
            step(X, kind(i))
        assert len(step.programs) == 1
        assert all(torch.equal(found, X * i) for i, found in enumerate(seen))


def test_an_exception_of_a_number_is_that_of_its_line(csx):
    seen = []
    step = cstorch.trace(lambda x, n: cstorch.step_closure(seen.append)(x if 6 / n > 2 else -x))
    step(X, 1)
    with pytest.raises(ZeroDivisionError):
        step(X, 0)


def test_a_power_that_becomes_a_float_is_not_cut_off(csx):
    agrees(lambda x, n: x * 2**n, [2, 1, -1, 0, -2])


def test_a_learning_rate_that_starts_as_an_int(csx):
    model = torch.nn.Linear(2, 1, bias=False)
    compiled = cstorch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)

    @cstorch.trace
    def step(x):
        optimizer.zero_grad()
        compiled(x).sum().backward()
        optimizer.step()

    values = [model.weight.detach().cpu()[0, 0].item()]
    for lr in (1, 0.5, 0.25):
        optimizer.param_groups[0]["lr"] = lr
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            step(torch.ones(1, 2))
        values.append(model.weight.detach().cpu()[0, 0].item())
    assert [a - b for a, b in itertools.pairwise(values)] == pytest.approx([1, 0.5, 0.25])
