"""`csx.precision.optimization_level`: what it does to the numbers of a training run, interpreted and compiled."""

from __future__ import annotations

import cstorch
import pytest
import torch
from programs import decay
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    """A convolution, attention, a matrix product with a bias and one without."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 8, 3, padding=1)
        self.qkv = nn.Linear(8, 24)
        self.head = nn.Linear(8, 3, bias=False)

    def forward(self, x):
        h = self.conv(x).transpose(1, 2)
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(h).chunk(3, -1))
        return self.head(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).mean(1))


def batches(count):
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(5, 4, 6, generator=generator) for _ in range(count)]


class Small(nn.Linear):
    """One product with a bias, which compiles quickly."""

    def __init__(self):
        super().__init__(6, 3)


def train(device, level=1, model=Net, optimizer=lambda p: torch.optim.AdamW(p, lr=0.02, eps=1e-2)):
    """Losses and weights."""
    torch.manual_seed(3)
    net = model().to(device)
    made = optimizer(net.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(made, decay)

    def step(x):
        made.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        made.step()
        return loss

    before = cstorch.backends.csx.precision.optimization_level
    cstorch.backends.csx.precision.optimization_level = level
    losses = []
    keep = cstorch.step_closure(lambda loss: losses.append(loss.item()))
    try:
        traced = cstorch.trace(step) if device == "csx" else step
        for x in batches(4):
            keep(traced(x.to(device)))
            schedule.step()
    finally:
        cstorch.backends.csx.precision.optimization_level = before
    return torch.tensor(losses), [p.detach().cpu() for p in net.parameters()]


def distance(run, other):
    return max((a - b).abs().max().item() for a, b in zip(run[1], other[1], strict=True))


@pytest.mark.parametrize("level", [0, 1])
def test_levels_0_and_1_train_as_eager(csx, level):
    torch.testing.assert_close(train("csx", level), train("cpu"), rtol=1e-5, atol=1e-6)


def test_level_2_is_close_to_eager_and_is_not_level_1(csx):
    low, full = train("csx", 2), train("cpu")
    torch.testing.assert_close(low, full, rtol=0.05, atol=5e-3)
    assert distance(low, full) > 1e-4


def test_level_2_multiplies_rounded_values_in_float32(csx, monkeypatch):
    monkeypatch.setattr(cstorch.backends.csx.precision, "optimization_level", 2)
    linear = nn.Linear(8, 4)
    x = torch.randn(5, 8)
    rounded = [t.detach().bfloat16().float() for t in (x, linear.weight)]
    expected = rounded[0] @ rounded[1].T + linear.bias.detach()
    model = cstorch.compile(linear)
    seen = []
    keep = cstorch.step_closure(lambda value: seen.append(value.detach()))
    keep(cstorch.trace(lambda x: model(x))(x))
    torch.testing.assert_close(seen[0], expected, rtol=1e-6, atol=1e-6)
    assert not torch.equal(seen[0], seen[0].bfloat16().float())


def test_what_an_optimizer_multiplies_is_not_rounded(csx):
    """Muon's iteration, of matrix products only, with weights that a rounded forward does not change."""

    def run(device, level):
        weight = nn.Parameter(torch.randn(6, 6, generator=torch.Generator().manual_seed(1)).to(device))
        optimizer = torch.optim.Muon([weight], lr=0.1)

        def step(x):
            optimizer.zero_grad()
            (weight * x).sin().sum().backward()
            optimizer.step()

        cstorch.backends.csx.precision.optimization_level = level
        try:
            traced = cstorch.trace(step) if device == "csx" else step
            for i in range(3):
                traced(torch.full((6, 6), 1.0 + i).to(device))
        finally:
            cstorch.backends.csx.precision.optimization_level = 1
        return weight.detach().cpu()

    assert torch.equal(run("csx", 2), run("csx", 1))


def test_a_step_is_traced_again_at_another_level(csx, monkeypatch):
    calls = []

    @cstorch.trace
    def step(x):
        calls.append(1)
        return x @ x

    for level in (1, 1, 2, 2, 1):
        monkeypatch.setattr(cstorch.backends.csx.precision, "optimization_level", level)
        step(torch.eye(4).to("csx"))
    assert len(calls) == 2


def test_level_2_leaves_what_pol_keeps_exact(csx, monkeypatch):
    monkeypatch.setattr(cstorch.backends.csx.precision, "optimization_level", 2)
    assert cstorch.current_pol() == 2
    x = torch.randn(5, 5)
    seen = []
    keep = cstorch.step_closure(lambda *values: seen.extend(values))

    @cstorch.trace
    def step(x):
        return x @ x, cstorch.pol(level=0)(torch.mm)(x, x)

    keep(*step(x.to("csx")))
    torch.testing.assert_close(seen[1], x @ x, rtol=1e-6, atol=1e-6)
    assert (seen[0] - x @ x).abs().max() > 1e-4


@pytest.mark.native
@pytest.mark.parametrize("level", [0, 2])
def test_compiled_programs_do_the_same(csx, monkeypatch, level):
    arguments = "csx", level, Small, lambda p: torch.optim.SGD(p, lr=0.1)
    compiled = train(*arguments)
    monkeypatch.setenv("CSTORCH_INTERPRET", "1")
    torch.testing.assert_close(compiled, train(*arguments), rtol=1e-6, atol=1e-6)
    if level == 2:
        assert distance(compiled, train("csx", 1, *arguments[2:])) > 1e-5


@pytest.mark.parametrize(
    "product",
    [
        lambda x, y: x @ y,
        lambda x, y: x[0] @ y,
        lambda x, y: torch.vdot(x[0], y[0]),
        lambda x, y: torch.bmm(x[None], y[None]),
        lambda x, y: torch.addmm(x, x, y),
        lambda x, y: (x * 0).addmm_(x, y),
        lambda x, y: (x[0] * 0).addmv_(x, y[0]),
        lambda x, y: torch.addbmm(x, x[None], y[None]),
        lambda x, y: torch.baddbmm(x[None], x[None], y[None]),
        lambda x, y: (x[None] * 0).baddbmm_(x[None], y[None]),
        lambda x, y: F.bilinear(x, y, torch.stack([x, y])),
        lambda x, y: F.conv2d(x[None, None], y[None, None]),
        lambda x, y: F.scaled_dot_product_attention(x[None, None], y[None, None], x[None, None]),
    ],
)
def test_every_kind_of_product_is_rounded_at_level_2(csx, monkeypatch, product):
    x, y = torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(1))
    made = []
    for level in (1, 2):
        monkeypatch.setattr(cstorch.backends.csx.precision, "optimization_level", level)
        keep = cstorch.step_closure(lambda value: made.append(value.detach().clone()))
        keep(cstorch.trace(lambda x, y: product(x, y))(x, y))
    assert not torch.equal(*made)
    torch.testing.assert_close(*made, rtol=0.1, atol=0.1)
