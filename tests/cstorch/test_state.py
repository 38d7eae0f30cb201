"""What a step changes is state: buffers, host tensors, contents that are exchanged or shared."""

import cstorch
import pytest
import torch
import torch.nn.functional as F
from cstorch.errors import StateError, TraceError
from programs import linear, to_cpu
from torch import nn


def test_a_rebound_buffer_carries_over(csx):
    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            self.mean = 0.5 * self.mean + x.mean(0)
            return x - self.mean

    model, twin, seen, expected = Running(), Running(), [], []
    compiled = cstorch.compile(model)
    buffer = model.mean
    step = cstorch.trace(lambda x: cstorch.step_closure(seen.append)(compiled(x)))
    for i in range(4):
        step(torch.full((2, 4), float(i)))
        expected.append(twin(torch.full((2, 4), float(i))))
    assert all(torch.equal(a, b) for a, b in zip(seen, expected))
    assert model.mean is buffer
    assert torch.equal(model.mean.cpu(), twin.mean)


def test_state_without_a_place_is_refused_by_name(csx):
    class Hidden(nn.Module):
        def forward(self, x):
            if hasattr(self, "hidden"):
                x = x + self.hidden
            self.hidden = x * 2
            return x

    model = cstorch.compile(Hidden())
    with pytest.raises(StateError, match=r"Hidden\.hidden.*register_buffer\('hidden'"):
        cstorch.trace(lambda x: model(x))(torch.ones(2))


def test_a_host_tensor_that_the_step_changes_is_state(csx):
    counter, seen = torch.zeros(()), []

    @cstorch.trace
    def step(x):
        counter.add_(1)
        cstorch.step_closure(seen.append)(x * counter)

    for _ in range(4):
        step(torch.ones(()))
    assert [t.item() for t in seen] == [1, 2, 3, 4]
    assert counter.item() == 4


def test_assigning_data_changes_the_parameter(csx):
    model, _ = linear()

    @cstorch.trace
    def step(x):
        model.weight.data = model.weight.data * 2
        return x

    before = model.weight.detach().cpu().clone()
    for _ in range(3):
        step(torch.ones(1))
    torch.testing.assert_close(model.weight.detach().cpu(), before * 8)
    model.weight.data = torch.zeros(4, 8)
    step(torch.ones(1))
    assert model.weight.detach().cpu().abs().sum() == 0


def test_train_and_evaluation_programs_work_on_the_same_weights(csx):
    model, compiled = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []

    @cstorch.trace
    def train(x):
        optimizer.zero_grad()
        compiled(x).sum().backward()
        optimizer.step()

    evaluate = cstorch.trace(lambda x: cstorch.step_closure(seen.append)(compiled(x).sum()))
    for _ in range(3):
        train(torch.ones(1, 8))
        evaluate(torch.ones(1, 8))
        assert seen[-1].item() == pytest.approx(
            F.linear(torch.ones(1, 8), *map(to_cpu, model.parameters())).sum().item()
        )


def test_views_made_before_a_step_that_changes_them_are_refused(csx):
    base = torch.zeros(4).to("csx")
    view = base[:2]

    @cstorch.trace
    def step(x):
        base.add_(1)
        return view + x

    with pytest.raises(TraceError, match="share memory"):
        step(torch.ones(2))


def test_a_model_that_has_left_the_device_is_named(csx):
    model, compiled = linear()
    step = cstorch.trace(lambda x: compiled(x).sum())
    step(torch.ones(1, 8))
    model.cpu()
    with pytest.raises(TraceError, match="have left csx since it was traced"):
        step(torch.ones(1, 8))


def test_a_program_notices_contents_that_are_exchanged_behind_it(csx):
    model, compiled = linear()
    seen = []
    step = cstorch.trace(lambda x: cstorch.step_closure(seen.append)(compiled(x).sum()))
    step(torch.ones(1, 8))
    torch.utils.swap_tensors(model.weight, nn.Parameter(torch.zeros(4, 8).to("csx")))
    model.bias.data = torch.ones(4).to("csx")
    step(torch.ones(1, 8))
    assert seen[1].item() == 4
    model.cpu()
    with torch.no_grad():
        model.weight.add_(1)
    cstorch.compile(model)
    step(torch.ones(1, 8))
    assert seen[2].item() == 36


def test_a_host_tensor_made_in_the_step_starts_afresh_at_each_run(csx):
    seen = []

    @cstorch.trace
    def step(x):
        count = torch.zeros(2)
        first = x + count
        count.add_(1)
        cstorch.step_closure(seen.append)(first + count)

    for _ in range(3):
        step(torch.ones(2))
    assert [s.tolist() for s in seen] == [[2, 2]] * 3


def test_a_host_tensor_moved_in_the_step_is_read_at_each_run(csx):
    mask, seen = torch.ones(2), []
    step = cstorch.trace(lambda x: cstorch.step_closure(seen.append)(x * mask.to("csx")))
    for value in (1.0, 2.0, 3.0):
        mask.fill_(value)
        step(torch.ones(2))
    assert [s.tolist() for s in seen] == [[1, 1], [2, 2], [3, 3]]


def test_a_host_tensor_that_the_step_reads_and_changes_is_refused(csx):
    model = torch.nn.Linear(2, 2)
    cstorch.compile(model)
    average = torch.optim.swa_utils.AveragedModel(model)

    @cstorch.trace
    def step():
        average.update_parameters(model)

    with pytest.raises(cstorch.errors.TraceError, match=r"changes a cpu tensor .* the host at .*\.to\(\"csx\"\)"):
        step()
