"""The state of every optimizer of cstorch.optim: made before the first step, and taken on from a checkpoint."""

import cstorch
import pytest
import torch
from cstorch import optim
from cstorch.optim import lr_scheduler as lrs
from cstorch.optim.of_torch import Adagrad
from programs import batches, same_as_eager
from torch import nn

OPTIONS = {
    "SGD": [{"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}, {}],
    "Adam": [{"weight_decay": 0.1, "amsgrad": True}],
    "AdamW": [{"weight_decay": 0.1}, {"correct_bias": False}],
    "Adafactor": [{"beta1": 0.9, "weight_decay": 0.1}, {}],
    "Adagrad": [{"initial_accumulator_value": 0.1, "lr_decay": 0.1}],
    "ASGD": [{"t0": 2}],
    "NAdam": [{"weight_decay": 0.1, "decoupled_weight_decay": True}],
    "RMSprop": [{"momentum": 0.9, "centered": True}, {}],
}
CASES = [
    (name, options)
    for name, kind in vars(optim).items()
    if isinstance(kind, type) and kind is not optim.Optimizer
    for options in OPTIONS.get(name, [{}])
]
IDS = [" ".join([name, *options]) for name, options in CASES]


def build(name, options, device):
    """A model, its optimizer, a schedule that has begun, and a step of training."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 6, bias=name != "Muon"), nn.Tanh(), nn.Linear(6, 4, bias=name != "Muon"))
    model.to(device)
    optimizer = getattr(optim, name)(model.parameters(), lr=0.02, **options)
    schedule = lrs.LinearLR(optimizer, 0.05, 0.01, 6)

    def step(x):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()
        schedule.step()

    return model, optimizer, schedule, step


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_a_run_goes_on_from_its_checkpoint(csx, name, options, tmp_path):
    given = batches(6, 3, 8)
    *whole, step = build(name, options, "csx")
    step = cstorch.trace(step)
    for i, x in enumerate(given):
        if i == 3:
            cstorch.save([part.state_dict() for part in whole], tmp_path / "half.mdl")
        step(x)
    *rest, step = build(name, options, "csx")
    for part, state in zip(rest, cstorch.load(tmp_path / "half.mdl"), strict=True):
        part.load_state_dict(state)
    step = cstorch.trace(step)
    for x in given[3:]:
        step(x)
    expected, found = ([part.state_dict() for part in parts] for parts in (whole, rest))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def layout(optimizer):
    return {
        (i, key): (value.dtype, value.shape, value.device.type)
        for i, state in optimizer.state_dict()["state"].items()
        for key, value in state.items()
    }


@pytest.mark.parametrize("device", ["cpu", "csx"])
@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_state_is_made_before_the_first_step_as_that_would(csx, name, options, device):
    trace = cstorch.trace if device == "csx" else lambda f: f
    _, early, _, step = build(name, options, device)
    early.preinitialize()
    made = layout(early)
    trace(step)(torch.ones(3, 8))
    _, late, _, step = build(name, options, device)
    trace(step)(torch.ones(3, 8))
    assert made == layout(early) == layout(late)
    assert made or (name, options) == ("SGD", {})
    torch.testing.assert_close(early.state_dict(), late.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_training_from_state_made_early_is_that_of_eager(csx, name, options):
    def train(run):
        model, optimizer, _, step = build(name, options, run.device)
        optimizer.preinitialize()
        step = run.trace(step)
        for x in batches(4, 3, 8):
            step(x)
        return model, optimizer

    assert same_as_eager(train, rtol=1e-4, atol=1e-5).count == 1


def test_global_steps_counted_before_there_is_other_state():
    p = nn.Parameter(torch.ones(3))
    optimizer = optim.AdamW([p], lr=0.1)
    optimizer.increment_global_step(p)
    p.grad = torch.ones(3)
    optimizer.step()
    assert optimizer.state[p]["step"] == optimizer.state[p]["global_step"] == 1


def test_state_of_complex_parameters():
    p = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    of_torch = [torch.optim.Adagrad([p], initial_accumulator_value=0.5), torch.optim.Rprop([p], lr=0.3)]
    ours = [Adagrad([p], initial_accumulator_value=0.5), optim.Rprop([p], lr=0.3)]
    p.grad = torch.zeros_like(p)
    of_torch[1].step()
    ours[0].state.clear()
    for expected, found, key in zip(of_torch, ours, ("sum", "step_size"), strict=True):
        found.preinitialize()
        assert torch.equal(found.state[p][key], expected.state[p][key])


def test_counts_keep_their_precision_beside_parameters_of_a_half_type():
    p = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = optim.NAdam([p], lr=0.1)
    optimizer.preinitialize()
    optimizer.state[p]["mu_product"].fill_(0.123456)
    for _ in range(257):
        optimizer.increment_global_step(p)
    other = optim.NAdam([p], lr=0.1)
    seen = []
    other.register_load_state_dict_post_hook(lambda o: seen.append(o.state[p]["global_step"].dtype))
    other.register_load_state_dict_pre_hook(lambda o, given: {**given, "state": {0: dict(given["state"][0])}})
    other.load_state_dict(optimizer.state_dict())
    assert other.state[p]["global_step"] == 257  # 256 in bfloat16
    assert other.state[p]["mu_product"] == torch.tensor(0.123456)
    assert seen == [torch.float32]
    other = optim.NAdam([p], lr=0.1)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        other.load_state_dict({"state": {}, "param_groups": []})
