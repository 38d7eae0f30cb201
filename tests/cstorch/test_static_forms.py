"""Functions of PyTorch that look at values or make shapes of them, in traced steps: equal to eager at every replay."""

from __future__ import annotations

import cstorch
import pytest
import torch
import torch.nn.functional as F
from cstorch.errors import TraceError
from torch import nn

STEPS = 4


def train(module, loss, batches, traced):
    """Losses, input gradients and final state of SGD with another lr in each step."""
    if traced:
        cstorch.compile(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    seen = []

    @cstorch.step_closure
    def note(*values):
        seen.append([value.detach().clone() for value in values])

    def step(*batch):
        x = batch[0].detach().requires_grad_()
        optimizer.zero_grad()
        value = loss(module(x), *batch[1:])
        value.backward()
        optimizer.step()
        note(value, x.grad)

    step = cstorch.trace(step) if traced else step
    for number, batch in enumerate(batches):
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + number)
        step(*batch)
    return seen, {name: value.cpu().clone() for name, value in module.state_dict().items()}


def assert_as_eager(make_module, loss, make_batch):
    batches = [make_batch() for _ in range(STEPS)]
    torch.manual_seed(3)
    truth = train(make_module(), loss, batches, traced=False)
    torch.manual_seed(3)
    found = train(make_module(), loss, batches, traced=True)
    torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-5)


def test_batch_norm_without_momentum_averages_over_all_batches(csx):
    assert_as_eager(
        lambda: nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3, momentum=None)),
        lambda y: (y**3).mean(),
        lambda: (torch.randn(6, 4),),
    )


def test_update_bn_in_a_step(csx):
    """Averaged weights need statistics of their own, which torch.optim.swa_utils takes with momentum=None."""
    model, twin = (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None)) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    cstorch.compile(model)
    step = cstorch.trace(lambda x: model(x))
    for _ in range(STEPS):
        x = torch.randn(6, 4) + 1
        step(x)
        twin(x)
    torch.testing.assert_close({k: v.cpu() for k, v in model.state_dict().items()}, dict(twin.state_dict()))


@pytest.mark.parametrize("width", [3, 1, None])
def test_gaussian_nll_loss(csx, width):
    variance = {3: (4, 3), 1: (4, 1), None: (1, 3)}[width]
    criterion = nn.GaussianNLLLoss(full=True)
    assert_as_eager(
        lambda: nn.Linear(5, 3),
        lambda y, target, var: criterion(y, target, var),
        lambda: (torch.randn(4, 5), torch.randn(4, 3), torch.rand(variance).clamp(min=0.1)),
    )


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("form", ["tensors", "lists", "one after the other"])
def test_ctc_loss(csx, reduction, form):
    steps, count, classes = 9, 3, 5

    def batch():
        inputs, wanted = torch.tensor([9, 6, 8]), torch.randint(0, 4, (count,))
        targets = torch.randint(0, classes - 1, (count, 4))
        if form == "lists":
            return torch.randn(steps, count, 4), targets
        if form == "one after the other":
            targets = torch.cat([row[: int(n)] for row, n in zip(targets, wanted, strict=True)] + [torch.zeros(12)])
            targets = targets[:12].to(torch.int32)
        return torch.randn(steps, count, 4), targets, inputs[torch.randperm(count)], wanted

    def loss(y, targets, inputs=(9, 6, 8), wanted=(4, 0, 2)):
        logs = y.log_softmax(2)
        blank = classes - 1
        if form == "one after the other" and y.device.type == "cpu":
            targets = targets[: int(wanted.sum())]
        return F.ctc_loss(logs, targets, inputs, wanted, blank, reduction, zero_infinity=True).sum()

    assert_as_eager(lambda: nn.Linear(4, classes), loss, batch)


def test_ctc_loss_of_what_does_not_fit(csx):
    """More labels than time steps: an infinite loss, or none with zero_infinity and no gradient."""
    seen = []
    logs = torch.randn(2, 2, 4).log_softmax(2)
    lengths = torch.tensor([2, 2]), torch.tensor([2, 1])
    targets = torch.tensor([[1, 1], [2, 0]])  # equal labels need a blank between them

    def losses(x):
        x = x.detach().requires_grad_()
        values = [
            F.ctc_loss(x, targets.to(x.device), *lengths, reduction="none", zero_infinity=z) for z in (False, True)
        ]
        return [*values, *torch.autograd.grad(values[1].sum(), x)]

    note = cstorch.step_closure(seen.append)
    cstorch.trace(lambda x: note(losses(x)))(logs)
    torch.testing.assert_close(seen[0], [v.detach() for v in losses(logs)])
    assert seen[0][0][0] == torch.inf


def test_ctc_loss_of_one_sequence(csx):
    assert_as_eager(
        lambda: nn.Linear(4, 5),
        lambda y, targets, length, wanted: F.ctc_loss(y.log_softmax(1), targets, length, wanted),
        lambda: (torch.randn(7, 4), torch.randint(1, 5, (3,)), torch.tensor(6), torch.tensor(3)),
    )


def test_linear_cross_entropy_is_recorded_in_one_chunk(csx):
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=1)
    head = torch.randn(11, 3)
    step_lengths = []

    def loss(y, target):
        return F.linear_cross_entropy(y, head.to(y.device), target, options=options)

    assert_as_eager(lambda: nn.Linear(4, 3), loss, lambda: (torch.randn(6, 4), torch.randint(0, 11, (6,))))
    for rows in (4, 16):
        step = cstorch.trace(lambda y, target: loss(y, target))
        step(torch.randn(rows, 3), torch.randint(0, 11, (rows,)))
        step_lengths.append(len(step.programs[0].graph.graph.nodes))
    assert step_lengths[0] == step_lengths[1]


def run(function, *batches):
    """What `function` gives in a traced step, for each batch."""
    seen = []
    note = cstorch.step_closure(seen.append)
    step = cstorch.trace(lambda *batch: note(function(*batch)))
    for batch in batches:
        step(*batch)
    return seen


def test_one_hot_with_a_number_of_classes(csx):
    batches = [torch.randint(0, 5, (2, 3)) for _ in range(3)]
    found = run(lambda x: F.one_hot(x, 5), *[(x,) for x in batches])
    torch.testing.assert_close(found, [F.one_hot(x, 5) for x in batches])


def test_one_hot_without_a_number_of_classes_says_to_give_it(csx):
    with pytest.raises(TraceError, match=r"one_hot\(\) without num_classes.*give num_classes; at .*test_static_forms"):
        run(F.one_hot, (torch.tensor([1, 2]),))


def test_repeat_interleave_with_a_known_size(csx):
    batches = [(torch.randn(3, 2), torch.tensor(counts)) for counts in ([1, 2, 1], [4, 0, 0])]
    found = run(lambda x, n: torch.repeat_interleave(x, n, 0, output_size=4), *batches)
    torch.testing.assert_close(found, [torch.repeat_interleave(x, n, 0) for x, n in batches])


@pytest.mark.parametrize("size", [(2, 2), (6, 2), (3, 4), (5, 4)])
def test_resize_of_a_tensor_that_the_step_made(csx, size):
    def resize(x):
        y = x * 2
        y.resize_(size)
        y += 1
        assert y.shape == size
        return y.flatten()[:12].clone(), (y * 3).flatten()[:12]

    batches = [torch.randn(3, 4) for _ in range(3)]
    found = run(resize, *[(x,) for x in batches])
    torch.testing.assert_close(found, [resize(x) for x in batches])


def test_a_resize_that_would_part_views_is_refused(csx):
    def resize(x):
        y = x * 2
        view = y[0]
        y.resize_(9, 9)
        return view

    with pytest.raises(TraceError, match=r"aten.resize_.default at .* while views share its memory"):
        run(resize, (torch.randn(3, 4),))


def test_a_resize_of_an_argument_is_refused(csx):
    with pytest.raises(TraceError, match=r"aten.resize_as_.default at .* that was made before the step"):
        run(lambda x: x.resize_as_(torch.ones(2)), (torch.randn(3, 4),))
