"""Kernels that update all parameters: what is taken out of a graph, and that training stays what it was."""

import cstorch
import pytest
import torch
from cstorch.compiler.passes import prepare
from cstorch.compiler.updates import split_updates
from torch import nn

OPTIMIZERS = [
    lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    lambda p: torch.optim.NAdam(p, lr=0.01, maximize=True),
    lambda p: torch.optim.Adamax(p, lr=0.01),
    lambda p: torch.optim.Adagrad(p, lr=0.05),
    lambda p: torch.optim.Rprop(p, lr=0.01),
]


class Part(nn.Module):
    """Two layers whose parameters are shorter and longer than a vector."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 7), nn.Linear(7, 37)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def traced(device, parts, optimizers, after=lambda parts: ()):
    """A training step of all parts on `device`, which returns its loss and what `after` gives."""

    def step(x):
        loss = sum(part(x).square().mean() for part in parts)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss, after(parts)

    return cstorch.trace(step) if device == "csx" else step


def graph_of(step):
    return prepare(next(iter(step._programs.values()))[-1].program.graph)


def operations(graph):
    return sum(node.op == "call_function" for node in graph.graph.nodes)


def run(device, steps=6):
    torch.manual_seed(1)
    parts = nn.ModuleList(Part() for _ in OPTIMIZERS).to(device)
    averages = [p.detach().clone() for p in parts[0].parameters()]
    optimizers = [make(part.parameters()) for make, part in zip(OPTIMIZERS, parts, strict=True)]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8) for optimizer in optimizers]

    def average(parts):  # reads the first part's weights after their update
        with torch.no_grad():
            for kept, p in zip(averages, parts[0].parameters(), strict=True):
                kept.lerp_(p, 0.25)

    step = traced(device, parts, optimizers, average)
    torch.manual_seed(2)
    for _ in range(steps):
        step(torch.randn(6, 5).to(device))
        for scheduler in schedulers:
            scheduler.step()
    state = {f"average {i}": kept for i, kept in enumerate(averages)} | parts.state_dict()
    for i, optimizer in enumerate(optimizers):
        for n, kept in optimizer.state_dict()["state"].items():
            state |= {f"{i} {n} {key}": value for key, value in kept.items()}
    return step, {key: torch.as_tensor(value).cpu() for key, value in state.items()}


@pytest.mark.native
def test_kernels_update_as_the_optimizers_do(csx):
    _, expected = run("cpu")
    step, found = run("csx")
    graph = graph_of(step)
    before = operations(graph)
    assert len(split_updates(graph)) >= len(OPTIMIZERS) - 1
    assert operations(graph) < before / 2
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=2e-5, atol=2e-6, msg=lambda text, key=key: f"{key}: {text}")


def adamw_graph(after=lambda parts: (), decay=()):
    parts = nn.ModuleList([Part()]).to("csx")
    step = traced("csx", parts, [torch.optim.AdamW(parts.parameters(), lr=0.01)], after)
    for _ in range(3):
        step(torch.randn(6, 5).to("csx"))
    return graph_of(step)


def test_what_is_left_is_forward_and_backward(csx):
    graph = adamw_graph()
    (kernel,) = split_updates(graph)
    assert sorted(numel for _, numel in kernel.rows) == [7, 35, 37, 259]
    assert not any(
        getattr(node.target, "_schema", None) and node.target._schema.is_mutable for node in graph.graph.nodes
    )
    gradients = {i for row, _ in kernel.rows for is_input, i in row if not is_input}
    assert gradients == set(range(1, 5))  # behind the loss


@pytest.mark.parametrize(
    "after",
    [
        lambda parts: [p.norm() for p in parts.parameters()],
        lambda parts: [p.detach().flatten()[:2] * 2 for p in parts.parameters()],
        lambda parts: [p.detach() + 0 for p in parts.parameters()],
    ],
    ids=["norm", "view", "copy"],
)
def test_weights_that_are_read_after_their_update_are_updated_where_they_were(csx, after):
    graph = adamw_graph(after)
    before = operations(graph)
    assert split_updates(graph) == []
    assert operations(graph) == before


def test_generated_code_of_another_form_is_refused():
    from cstorch._torch_private.inductor import Epilogue, with_epilogue

    with pytest.raises(NotImplementedError, match="what AOTInductor generates has changed"):
        with_epilogue("void run() {}", Epilogue("", "", "", 1))
