"""Recurrent networks: an operator for each layer and direction, equal to eager PyTorch on the cpu."""

import itertools

import cstorch
import pytest
import torch
import torch.nn.functional as F
from cstorch.compiler.flops import count_flops
from torch import nn

KINDS = {
    "tanh": nn.RNN,
    "relu": lambda *sizes, **rest: nn.RNN(*sizes, nonlinearity="relu", **rest),
    "gru": nn.GRU,
    "lstm": nn.LSTM,
}
FORMS = [
    {},
    {"bias": False},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"num_layers": 3, "dropout": 0.5},
]


class Net(nn.Module):
    def __init__(self, kind, **form):
        super().__init__()
        self.cells = KINDS[kind](5, 6, **form)
        self.head = nn.Linear(12 if form.get("bidirectional") else 6, 3)

    def forward(self, x):
        out, state = self.cells(x)
        state = state if isinstance(state, tuple) else (state,)
        return self.head(out).square().mean() + sum(s.sin().mean() for s in state)


def train(device, kind, form, dtype=torch.float32, native=False, steps=6, length=7):
    """Losses and weights of a training with a changing learning rate."""
    torch.manual_seed(0)
    net = Net(kind, **form).to(dtype)
    x = torch.randn(steps, length, 4, 5, dtype=dtype)
    if device == "csx":
        backend = cstorch.backend("CSX")
        model = cstorch.compile(net, backend)
        trace = cstorch.trace
    else:
        model, trace = net, lambda step: step
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (1 + i))
    losses = []

    @trace
    def step(batch):
        optimizer.zero_grad()
        loss = model(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        return loss

    torch.manual_seed(1)
    if device == "csx":
        loader = cstorch.utils.data.DataLoader(lambda: iter(x))
        keep = cstorch.step_closure(lambda loss: losses.append(loss.detach().cpu().clone()))
        for batch in cstorch.utils.data.DataExecutor(loader, num_steps=steps):
            keep(step(batch))
        (programs,) = step._programs.values()
        graph = programs[0].program.graph
    else:
        losses = [step(batch).detach() for batch in x]
        graph = None
    return torch.stack(losses), [p.detach().cpu() for p in net.parameters()], graph


@pytest.mark.parametrize(("kind", "form"), list(itertools.product(KINDS, FORMS)))
def test_trains_as_eager(csx, kind, form):
    losses, weights, graph = train("csx", kind, form)
    expected, of_eager, _ = train("cpu", kind, form)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights, of_eager, rtol=1e-4, atol=1e-5)
    count = form.get("num_layers", 1) * (2 if form.get("bidirectional") else 1)
    operators = torch.ops.cstorch.recurrent.default, torch.ops.cstorch.lstm.default
    assert sum(node.target in operators for node in graph.graph.nodes) == count


def test_program_does_not_grow_with_the_sequence(csx):
    sizes = [len(train("csx", "gru", {}, steps=1, length=length)[2].graph.nodes) for length in (3, 50)]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("kind", KINDS)
def test_operations_are_counted(csx, kind):
    graph = train("csx", kind, {}, steps=1)[2]
    gates = {"gru": 3, "lstm": 4}.get(kind, 1)
    head = 2 * 7 * 4 * 6 * 3
    inputs, hidden = (2 * 7 * 4 * size * gates * 6 for size in (5, 6))
    without_input_gradient = 0 if kind == "lstm" else inputs  # oneDNN computes it, needed or not
    assert count_flops(graph) == 3 * (head + inputs + hidden) - without_input_gradient


@pytest.mark.native
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_natively(csx, kind):
    form = {"num_layers": 2, "bidirectional": True}
    losses, weights, _ = train("csx", kind, form)
    expected, of_eager, _ = train("cpu", kind, form)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights, of_eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_the_operator_are_those_of_finite_differences(kind):
    torch.manual_seed(0)
    gates = {"gru": 3, "lstm": 4}.get(kind, 1)
    make = lambda *shape: torch.randn(*shape, dtype=torch.float64, requires_grad=True)  # noqa: E731
    x, h, c, w, b = make(4, 2, gates * 3), make(2, 3), make(2, 3), make(gates * 3, 3), make(gates * 3)
    c, b = c if kind == "lstm" else None, b if kind == "gru" else None

    def run(x, h, w, *rest):
        rest = list(rest)
        cell = rest.pop(0) if c is not None else None
        out, last, _ = torch.ops.cstorch.recurrent(kind, x, h, cell, w, rest[0] if rest else None)
        return (out, last) if c is not None else out

    given = [t for t in (x, h, w, c, b) if t is not None]
    assert torch.autograd.gradcheck(run, given)
    assert torch.autograd.gradgradcheck(run, given)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_gradient_penalty_differentiates_twice(csx, kind):
    x = torch.randn(5, 2, 5)

    def penalty(device):
        torch.manual_seed(0)
        net = KINDS[kind](5, 4).to(torch.float64).to(device)
        inputs = x.to(torch.float64).to(device).requires_grad_()
        (gradient,) = torch.autograd.grad(net(inputs)[0].sum(), inputs, create_graph=True)
        (gradient.square().sum() + F.softplus(gradient).mean()).backward()
        return [p.grad.cpu() for p in net.parameters()]

    torch.testing.assert_close(penalty("csx"), penalty("cpu"))


def test_projections_and_packed_sequences_go_step_by_step(csx):
    torch.manual_seed(0)
    projected, packed = nn.LSTM(5, 6, proj_size=3), nn.GRU(5, 6)
    x = torch.randn(4, 3, 5)
    lengths = torch.tensor([4, 2, 1])
    with torch.no_grad():
        expected = projected(x)[0], packed(nn.utils.rnn.pack_padded_sequence(x, lengths))[0].data
    projected, packed, x = projected.to("csx"), packed.to("csx"), x.to("csx")
    found = projected(x)[0].cpu(), packed(nn.utils.rnn.pack_padded_sequence(x, lengths))[0].data.cpu()
    torch.testing.assert_close([t.detach() for t in found], list(expected))
