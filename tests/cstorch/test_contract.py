"""The contract of tracing: what runs once, what is read anew, what raises, what is state."""

import itertools
import re
import warnings

import cstorch
import pytest
import torch
import torch.nn.functional as F
from cstorch.errors import OptimizerError, ProgramLimitError, StateError, TraceError, ValueReadError
from programs import mlp
from torch import nn


def line_of(function, text):
    """`file:line` of the line of `function` that contains `text`."""
    import inspect

    lines, start = inspect.getsourcelines(function)
    (offset,) = [i for i, line in enumerate(lines) if text in line]
    return f"{__file__}:{start + offset}"


def linear(csx):
    model = nn.Linear(8, 4)
    return model, cstorch.compile(model)


# -- once -------------------------------------------------------------------------------------------------


def test_a_generator_is_consumed_once(csx):
    model, compiled = linear(csx)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parameters = (p for p in model.parameters())
    clipped = []

    @cstorch.trace
    def step(x):
        optimizer.zero_grad()
        compiled(x).square().sum().backward()
        clipped.append(torch.nn.utils.clip_grad_norm_(list(parameters), 0.01) is not None)
        optimizer.step()

    before = model.weight.detach().cpu()
    for _ in range(5):
        step(torch.ones(2, 8))
    assert clipped == [True]
    assert (model.weight.detach().cpu() - before).norm() <= 5 * 0.1 * 0.01 + 1e-6


def test_an_exception_in_a_step_leaves_the_model_as_it_was(csx):
    model, compiled = linear(csx)
    before = model.weight.detach().cpu().clone()

    @cstorch.trace
    def step(x):
        compiled(x).sum().backward()
        with torch.no_grad():
            model.weight.add_(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        step(torch.ones(2, 8))
    assert model.weight.grad is None
    assert torch.equal(model.weight.detach().cpu(), before)
    assert torch.equal(compiled(torch.ones(2, 8).to("csx")).shape and model(torch.ones(2, 8).to("csx")).detach().cpu(),
                       F.linear(torch.ones(2, 8), before, model.bias.detach().cpu()))  # fmt: skip


# -- reading ----------------------------------------------------------------------------------------------


def reads(compiled):
    def printing(x):
        print(compiled(x).sum())  # here

    def item(x):
        return compiled(x).sum().item()  # here

    def condition(x):
        if compiled(x).sum() > 1:  # here
            return x
        return -x

    def formatting(x):
        return f"{compiled(x).sum()}"  # here

    def to_list(x):
        return compiled(x).tolist()  # here

    def to_numpy(x):
        return compiled(x).detach().numpy()  # here

    def to_cpu(x):
        return compiled(x).cpu()  # here

    return [printing, item, condition, formatting, to_list, to_numpy, to_cpu]


@pytest.mark.parametrize("index", range(7))
def test_reading_a_value_names_the_line_and_the_remedies(csx, index):
    step = reads(linear(csx)[1])[index]
    with pytest.raises(ValueReadError, match="outside of a step closure") as caught:
        cstorch.trace(step)(torch.ones(2, 8))
    message = str(caught.value)
    assert line_of(step, "# here") in message
    assert "@cstorch.step_closure" in message
    assert "torch.where" in message


def test_a_returned_tensor_is_read_in_closures_only(csx):
    _, compiled = linear(csx)
    seen = []
    result = cstorch.trace(lambda x: compiled(x).sum())(torch.ones(2, 8))
    with pytest.raises(ValueReadError):
        result.item()
    with pytest.raises(ValueReadError):
        print(result)
    with pytest.raises(ValueReadError):
        result * 2
    cstorch.step_closure(seen.append)(result)
    assert seen[0].item() == pytest.approx(model_sum(compiled), rel=1e-5)


def model_sum(compiled):
    return compiled(torch.ones(2, 8).to("csx")).sum().item()


@pytest.mark.parametrize(
    "operation",
    [
        lambda y: y.nonzero(),
        lambda y: y[y > 0],
        lambda y: y.unique(),
        lambda y: torch.equal(y, y),
        lambda y: torch.where(y > 0),
    ],
)
def test_shapes_that_depend_on_values_are_refused_with_a_remedy(csx, operation):
    _, compiled = linear(csx)
    with pytest.raises(TraceError, match=re.escape(__file__)):
        cstorch.trace(lambda x: operation(compiled(x)))(torch.ones(2, 8))


def test_torch_tensor_of_traced_values_stays_alive(csx):
    seen = []

    @cstorch.trace
    def step(x):
        both = torch.tensor([x.sum(), x.max()])
        cstorch.step_closure(seen.append)(both)

    for i in range(3):
        step(torch.full((2,), float(i)))
    assert [t.tolist() for t in seen] == [[0.0, 0.0], [2.0, 1.0], [4.0, 2.0]]


# -- random numbers ---------------------------------------------------------------------------------------


def masks(backend, seed, steps=4):
    drop = nn.Dropout(0.5)
    seen = []

    @cstorch.trace
    def step(x):
        cstorch.step_closure(seen.append)(drop(x))

    torch.manual_seed(seed)
    for _ in range(steps):
        step(torch.ones(64))
    return torch.stack(seen)


def test_dropout_masks_differ_and_follow_the_seed(csx):
    first, again, other = masks(csx, 1), masks(csx, 1), masks(csx, 2)
    assert all(not torch.equal(first[i], first[j]) for i in range(4) for j in range(i))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.native
def test_compiled_dropout_masks_differ_and_follow_the_seed(csx):
    first, again, other = masks(csx, 1), masks(csx, 1), masks(csx, 2)
    assert all(not torch.equal(first[i], first[j]) for i in range(4) for j in range(i))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert 0.3 < (first == 0).float().mean() < 0.7


def test_dropout_draws_what_eager_draws(csx):
    torch.manual_seed(5)
    eager = torch.stack([F.dropout(torch.ones(64), 0.5) for _ in range(4)])
    assert torch.equal(masks(csx, 5), eager)


@pytest.mark.native
def test_compiled_dropout_draws_what_eager_draws_in_deterministic_mode(csx):
    torch.use_deterministic_algorithms(True)
    try:
        torch.manual_seed(5)
        eager = torch.stack([F.dropout(torch.ones(64), 0.5) for _ in range(4)])
        assert torch.equal(masks(csx, 5), eager)
    finally:
        torch.use_deterministic_algorithms(False)


def test_random_numbers_of_the_host_are_named(csx):
    with pytest.warns(UserWarning, match="draws random numbers on the host with torch's cpu generator"):
        cstorch.trace(lambda x: x + torch.rand(()))(torch.ones(2))


# -- numbers ----------------------------------------------------------------------------------------------


def test_a_number_argument_is_read_at_each_step_and_guards_branches(csx):
    calls, seen = [], []

    @cstorch.trace
    def step(x, i):
        calls.append(1)
        weight = min(1.0, i / 4)
        cstorch.step_closure(lambda *a: seen.append([float(v) for v in a]))(x.sum() * weight, i * 2, i % 3)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(8):
            step(torch.ones(1), i)
    assert seen == [[min(1.0, i / 4), i * 2, i % 3] for i in range(8)]
    assert len(calls) == 2


def test_a_number_that_python_needs_becomes_a_guard(csx):
    seen = []

    @cstorch.trace
    def step(x, n):
        cstorch.step_closure(seen.append)(sum(x[k] for k in range(n)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in (1, 3, 2, 3):
            step(torch.arange(1.0, 5.0), n)
    assert [t.item() for t in seen] == [1, 6, 3, 6]


def test_a_scheduler_stepped_in_the_step_acts_after_every_step(csx):
    model, compiled = linear(csx)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    @cstorch.trace
    def step(x):
        optimizer.zero_grad()
        compiled(x).sum().backward()
        optimizer.step()
        scheduler.step()

    biases = [model.bias.detach().cpu()[0].item()]
    for _ in range(4):
        step(torch.ones(1, 8))
        biases.append(model.bias.detach().cpu()[0].item())
    assert [b - a for a, b in itertools.pairwise(biases)] == pytest.approx([-1, -0.5, -0.25, -0.125])
    assert optimizer.param_groups[0]["lr"] == 1 / 16


@pytest.mark.parametrize("key", ["lr", "weight_decay", "betas", "eps"])
def test_every_number_of_a_param_group_may_change(csx, key):
    changed = {"lr": 0.1, "weight_decay": 0.5, "betas": (0.5, 0.6), "eps": 1.0}[key]

    def train(device):
        torch.manual_seed(2)
        model = mlp().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)

        def step(x):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        step = cstorch.trace(step) if device == "csx" else step
        for i in range(6):
            if i == 3:
                optimizer.param_groups[0][key] = changed
            step(torch.ones(2, 8) * i)
        return [p.detach().cpu() for p in model.parameters()]

    for found, expected in zip(train("csx"), train("cpu")):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_guarded_number_of_a_param_group_makes_another_program(csx):
    model, compiled = linear(csx)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.0)
    twin = nn.Linear(8, 4)
    twin.load_state_dict(model.state_dict())
    other = torch.optim.SGD(twin.parameters(), lr=0.1, weight_decay=0.0)

    def body(model, optimizer, x):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    step = cstorch.trace(lambda x: body(compiled, optimizer, x))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(4):
            optimizer.param_groups[0]["weight_decay"] = other.param_groups[0]["weight_decay"] = 0.5 * (i > 1)
            step(torch.ones(1, 8) * 0.1)
            body(twin, other, torch.ones(1, 8) * 0.1)
    assert len(step.programs) == 2
    assert any("a number that the step branches on" in str(w.message) for w in caught)
    torch.testing.assert_close(model.weight.detach().cpu(), twin.weight.detach())


# -- state ------------------------------------------------------------------------------------------------


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
    model, _ = linear(csx)

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


def test_train_and_evaluation_programs_work_on_the_same_weights(csx):
    model, compiled = linear(csx)
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


def to_cpu(tensor):
    return tensor.detach().cpu()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_accumulate_over_batches_as_in_eager(csx, set_to_none):
    def train(device):
        torch.manual_seed(4)
        model = nn.Linear(8, 4).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

        def step(x, i):
            if i % 3 == 0:
                optimizer.zero_grad(set_to_none=set_to_none)
            (model(x).square().mean() / 3).backward()
            if i % 3 == 2:
                optimizer.step()

        step = cstorch.trace(step) if device == "csx" else step
        generator = torch.Generator().manual_seed(1)
        for i in range(12):
            step(torch.randn(2, 8, generator=generator), i)
        return [p.detach().cpu() for p in model.parameters()]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = train("csx")
    for a, b in zip(found, train("cpu")):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_forgotten_zero_grad_accumulates_as_in_eager(csx):
    def train(device):
        torch.manual_seed(4)
        model = nn.Linear(8, 4).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(x):
            model(x).square().mean().backward()
            optimizer.step()

        step = cstorch.trace(step) if device == "csx" else step
        for i in range(5):
            step(torch.full((2, 8), 0.1 * i))
        return model.weight.detach().cpu(), model.weight.grad.cpu()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = train("csx")
    for a, b in zip(found, train("cpu")):
        torch.testing.assert_close(a, b)


def test_a_consumed_gradient_is_not_read_silently(csx):
    model, compiled = linear(csx)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @cstorch.trace
    def step(x):
        optimizer.zero_grad()
        compiled(x).sum().backward()
        optimizer.step()

    step(torch.ones(1, 8))
    with pytest.raises(ValueReadError):
        model.weight.grad.norm()
    model.cpu()
    assert model.weight.grad is None


# -- optimizers -------------------------------------------------------------------------------------------


def test_lbfgs_is_refused_by_name(csx):
    model, compiled = linear(csx)
    optimizer = torch.optim.LBFGS(model.parameters())

    @cstorch.trace
    def step(x):
        optimizer.step(lambda: compiled(x).sum())

    with pytest.raises(OptimizerError, match="LBFGS cannot be part of a traced step"):
        step(torch.ones(1, 8))


def test_dampening_is_refused_by_name(csx):
    model, compiled = linear(csx)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.1)

    @cstorch.trace
    def step(x):
        compiled(x).sum().backward()
        optimizer.step()

    with pytest.raises(OptimizerError, match=r"dampening=0\.1"):
        step(torch.ones(1, 8))


def test_an_optimizer_closure_is_run_once(csx):
    model, compiled = linear(csx)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    calls = []

    @cstorch.trace
    def step(x):
        def closure():
            calls.append(1)
            optimizer.zero_grad()
            loss = compiled(x).square().sum()
            loss.backward()
            return loss

        return optimizer.step(closure)

    before = to_cpu(model.weight).clone()
    for _ in range(3):
        step(torch.ones(1, 8))
    assert calls == [1]
    assert (to_cpu(model.weight) - before).abs().max() > 0.1


def test_optimizer_state_of_a_cpu_run_continues(csx):
    def run(device, optimizer_state=None, weights=None, steps=3):
        torch.manual_seed(4)
        model = nn.Linear(8, 4)
        if weights:
            model.load_state_dict(weights)
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        if optimizer_state:
            optimizer.load_state_dict(optimizer_state)

        def step(x):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        step = cstorch.trace(step) if device == "csx" else step
        for _ in range(steps):
            step(torch.ones(2, 8))
        return {k: v.cpu() for k, v in model.state_dict().items()}, optimizer.state_dict()

    weights, state = run("cpu")
    there, _ = run("csx", state, weights)
    straight, _ = run("cpu", steps=6)
    for name, expected in straight.items():
        torch.testing.assert_close(there[name], expected, rtol=1e-5, atol=1e-6)


# -- programs ---------------------------------------------------------------------------------------------


def test_a_new_shape_warns_once_and_works(csx):
    _, compiled = linear(csx)
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


def test_views_made_before_a_step_that_changes_them_are_refused(csx):
    base = torch.zeros(4).to("csx")
    view = base[:2]

    @cstorch.trace
    def step(x):
        base.add_(1)
        return view + x

    with pytest.raises(TraceError, match="share memory"):
        step(torch.ones(2))


def test_freezing_a_parameter_makes_another_program(csx):
    def train(device):
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(x):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        step = cstorch.trace(step) if device == "csx" else step
        for i in range(6):
            model[0].requires_grad_(i not in (2, 3))
            step(torch.ones(2, 8))
        return [p.detach().cpu() for p in model.parameters()]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = train("csx")
    for a, b in zip(found, train("cpu")):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_model_that_has_left_the_device_is_named(csx):
    model, compiled = linear(csx)
    step = cstorch.trace(lambda x: compiled(x).sum())
    step(torch.ones(1, 8))
    model.cpu()
    with pytest.raises(TraceError, match="have left csx since it was traced"):
        step(torch.ones(1, 8))


def test_a_learning_rate_read_in_the_step_is_that_of_each_step(csx):
    model, compiled = linear(csx)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    seen = []

    @cstorch.trace
    def step(x):
        optimizer.zero_grad()
        loss = compiled(x).sum() * optimizer.param_groups[0]["lr"]
        loss.backward()
        optimizer.step()
        cstorch.step_closure(lambda *a: seen.append(a))(optimizer.param_groups[0]["lr"], torch.tensor(0.0))

    for _ in range(3):
        step(torch.zeros(1, 8))
        scheduler.step()
    assert [lr for lr, _ in seen] == [1.0, 0.5, 0.25]
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert type(optimizer.param_groups[0]["lr"]) is float


def test_assigning_a_learning_rate_in_the_step_is_named(csx):
    model, compiled = linear(csx)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    @cstorch.trace
    def step(x):
        optimizer.param_groups[0]["lr"] = 0.5
        compiled(x).sum().backward()
        optimizer.step()

    with pytest.warns(UserWarning, match=r"assigns 0\.5 to param_groups"):
        step(torch.zeros(1, 8))


def test_a_program_notices_contents_that_are_exchanged_behind_it(csx):
    model, compiled = linear(csx)
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
