"""Optimizers' groups and schedules as configuration files of client programs give them."""

import cstorch
import pytest
import torch
from cstorch import optim
from cstorch.optim import lr_scheduler as lrs
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(4, 3)
        self.decoder = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embedding.weight


def names(model, group):
    return [name for name, p in model.named_parameters() if any(p is q for q in group["params"])]


def test_groups_by_decay_and_factor():
    model = Net()
    params = {"weight_decay": 0.1, "adjust_learning_rate": {"decoder": 0.5, "*bias": 2.0}, "lr": 3.0}
    groups = optim.configure_param_groups(model, params)
    found = [(names(model, g), g["weight_decay"], g.get("adjust_learning_rate")) for g in groups]
    assert found == [
        (["embedding.weight"], 0.1, None),
        (["decoder.weight"], 0.1, 0.5),
        (["decoder.bias"], 0.0, 0.5),
        (["norm.weight"], 0.0, None),
        (["norm.bias"], 0.0, 2.0),
    ]
    assert len(optim.configure_param_groups(model, {"weight_decay_rate": 0.1})) == 2
    (one,) = optim.configure_param_groups(model, {})
    assert (len(one["params"]), one["weight_decay"]) == (5, 0.0)


def test_factors_scale_a_configured_schedule():
    model = Net()
    params = {"adjust_learning_rate": {"decoder": 0.5}}
    optimizer = optim.configure_optimizer("SGD", optim.configure_param_groups(model, params))
    rate = {"scheduler": "Linear", "initial_learning_rate": 0.4, "end_learning_rate": 0.0, "total_iters": 4}
    schedule = optim.configure_lr_scheduler(optimizer, rate, params["adjust_learning_rate"])
    schedule.step()
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([0.3, 0.15])
    plain = optim.configure_lr_scheduler(optimizer, rate, None)
    assert type(plain) is lrs.LinearLR


@pytest.fixture
def made():
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=9.0, weight_decay=0.5)


UP = {"LinearLR": {"initial_learning_rate": 0.0, "end_learning_rate": 0.5, "total_iters": 10}}
REST = {"ConstantLR": {"learning_rate": 0.3}}


def test_schedules_within_schedules(made):
    schedule = optim.configure_scheduler(made, {"SequentialLR": {"schedulers": [UP, REST]}})
    assert schedule.milestones == [10]
    assert [schedule.values_at(t)[0] for t in (0, 5, 10)] == [0, 0.25, 0.3]
    schedule = optim.configure_scheduler(made, {"SequentialLR": {"schedulers": [UP, REST], "milestones": [4]}})
    assert [schedule.values_at(t)[0] for t in (3, 4)] == pytest.approx([0.15, 0.3])
    schedule = optim.configure_scheduler(made, {"ScalePerParamLR": {"scheduler": UP}})
    assert isinstance(schedule, lrs.ScalePerParamLR)
    both = [{"StepLR": {"initial_learning_rate": 0.5, "step_size": 2, "gamma": 0.5}}, REST]
    schedule = optim.configure_scheduler(made, {"ChainedScheduler": {"schedulers": both}})
    assert schedule.values_at(4) == pytest.approx([0.125])
    decay = {"LinearWD": {"initial_val": 0.4, "end_val": 0.0, "total_iters": 4}}
    optim.configure_scheduler(made, decay).step()
    assert made.param_groups[0]["weight_decay"] == pytest.approx(0.3)
    other = {"StepScheduler": {"initial_val": 0.8, "step_size": 1, "gamma": 0.5, "param_group_key": "momentum"}}
    optim.configure_scheduler(made, other).step()
    assert made.param_groups[0]["momentum"] == pytest.approx(0.4)


def test_configurations_that_make_no_schedule(made):
    flat = {"scheduler": "Constant", "learning_rate": 0.1}
    assert optim.configure_lr_scheduler(made, {**flat, "disable_lr_steps_reset": False}).values_at(3) == [0.1]
    with pytest.raises(ValueError, match="disable_lr_steps_reset is set for Constant"):
        optim.configure_lr_scheduler(made, {**flat, "disable_lr_steps_reset": True})
    with pytest.raises(ValueError, match="ConstantLR is followed by another schedule but has no total_iters"):
        optim.configure_scheduler(made, {"SequentialLR": {"schedulers": [REST, UP]}})
    with pytest.raises(ValueError, match="no Scheduler named 'NoLR'"):
        optim.configure_scheduler(made, {"NoLR": {"a": 1}})


def test_hooks_of_zero_grad_may_change_its_arguments():
    p = nn.Parameter(torch.ones(2))
    optimizer = cstorch.optim.SGD([p], lr=0.1)
    p.grad = torch.ones(2)
    optimizer.register_zero_grad_pre_hook(lambda o, args, kwargs: ((), {"set_to_none": False}))
    optimizer.zero_grad()
    assert torch.equal(p.grad, torch.zeros(2))
