"""Every optimizer of cstorch.optim: traced as eager, and by an independent truth."""

import copy

import cstorch
import numpy as np
import pytest
import torch
from cstorch import optim
from cstorch.optim import lr_scheduler as lrs
from programs import batches, same_as_eager
from torch import nn

NAMES = [name for name, kind in vars(optim).items() if isinstance(kind, type) and kind is not optim.Optimizer]
OPTIONS = {
    "SGD": {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
    "Adam": {"weight_decay": 0.1, "amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
    "Adafactor": {"beta1": 0.9, "weight_decay": 0.1},
    "Lamb": {"weight_decay": 0.1},
    "Lion": {"weight_decay": 0.1},
}


def make(name, params, **options):
    return getattr(optim, name)(params, lr=0.02, **{**OPTIONS.get(name, {}), **options})


@pytest.mark.parametrize("name", NAMES)
def test_traced_steps_are_those_of_eager_under_a_schedule(csx, name):
    def train(run):
        model = nn.Linear(8, 4, bias=name != "Muon").to(run.device)
        optimizer = make(name, model.parameters())
        schedule = lrs.LinearLR(optimizer, 0.05, 0.01, 4)

        @run.trace
        def step(x):
            optimizer.zero_grad()
            (model(x) - 1).square().mean().backward()
            optimizer.step()
            schedule.step()

        for x in batches(6, 3, 8):
            step(x)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
        return model, optimizer

    assert same_as_eager(train, rtol=1e-4, atol=1e-5).count == 1


def gradients(shape, count=6):
    return [g.double() for g in batches(count, *shape)]


def after(optimizer_class, shape=(3, 4), **options):
    p = nn.Parameter(torch.linspace(-1, 2, 12, dtype=torch.float64).reshape(shape))
    optimizer = optimizer_class([p], **options)
    for i, gradient in enumerate(gradients(shape)):
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + i)
        p.grad = gradient.clone()
        optimizer.step()
    return p.detach()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        ("Adam", {"eps": 0.0, "weight_decay": 0.1, "amsgrad": False}),
        ("AdamW", {"eps": 0.0, "weight_decay": 0.1}),
        *[(n, {"eps": 1e-6}) for n in ("Adadelta", "Adagrad", "Adamax", "NAdam", "RAdam", "RMSprop")],
        ("ASGD", {}),
        ("Rprop", {}),
    ],
)
def test_the_same_as_torch_with_the_same_settings(name, options):
    torch.testing.assert_close(after(getattr(optim, name), **options), after(getattr(torch.optim, name), **options))


def numpy_adamw(p, g, s, t, lr, correct=True):
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.999 * s.get("v", 0) + 0.001 * g**2
    size = lr * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) if correct else lr
    return p * (1 - lr * 0.1) - size * s["m"] / (np.sqrt(s["v"]) + 1e-3)


def numpy_lamb(p, g, s, t, lr):
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.999 * s.get("v", 0) + 0.001 * g**2
    update = s["m"] / (np.sqrt(s["v"]) + 1e-3) + 0.1 * p
    return p - lr * min(np.linalg.norm(p), 10) / np.linalg.norm(update) * update


def numpy_lion(p, g, s, t, lr):
    m = s.get("m", 0)
    s["m"] = 0.99 * m + 0.01 * g
    return p - lr * (np.sign(0.9 * m + 0.1 * g) + 0.1 * p)


def numpy_muon(p, g, s, t, lr):
    s["m"] = 0.95 * s.get("m", 0) + 0.05 * g
    x = 0.05 * g + 0.95 * s["m"]
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return p - lr * (0.01 * p + x)


def numpy_adafactor(p, g, s, t, lr):
    lr *= max(1e-3, np.sqrt((p**2).mean()))
    b, square = 1 - t**-0.8, g**2 + 1e-30
    s["r"] = b * s.get("r", 0) + (1 - b) * square.mean(1)
    s["c"] = b * s.get("c", 0) + (1 - b) * square.mean(0)
    update = g / np.sqrt(np.outer(s["r"], s["c"]) / s["r"].mean())
    return p - lr * update / max(1, np.sqrt((update**2).mean()))


def numpy_sgd(p, g, s, t, lr):
    s["m"] = 0.9 * s.get("m", 0) + 0.7 * g
    return p - lr * s["m"]


@pytest.mark.parametrize(
    ("name", "truth", "options"),
    [
        ("AdamW", numpy_adamw, {"eps": 1e-3, "weight_decay": 0.1}),
        (
            "AdamW",
            lambda *a: numpy_adamw(*a, correct=False),
            {"eps": 1e-3, "weight_decay": 0.1, "correct_bias": False},
        ),
        ("Lamb", numpy_lamb, {"eps": 1e-3, "weight_decay": 0.1}),
        ("Lion", numpy_lion, {"weight_decay": 0.1}),
        ("Muon", numpy_muon, {}),
        ("Adafactor", numpy_adafactor, {"lr": 1.0}),
        ("SGD", numpy_sgd, {"momentum": 0.9, "dampening": 0.3}),
    ],
)
def test_the_maths_of_the_paper(name, truth, options):
    p, state = np.linspace(-1, 2, 12).reshape(3, 4), {}
    for i, g in enumerate(gradients((3, 4))):
        p = truth(p, g.numpy(), state, i + 1, 0.1 / (1 + i))
    np.testing.assert_allclose(after(getattr(optim, name), **options).numpy(), p, rtol=1e-6)


@pytest.mark.parametrize("name", ["Adam", "Lamb", "SGD"])
def test_state_goes_on_from_a_state_dict(name):
    def train(optimizer, p, given):
        for g in given:
            p.grad = g.clone()
            optimizer.step()

    p = nn.Parameter(torch.ones(3, 4, dtype=torch.float64))
    optimizer = make(name, [p])
    optimizer.preinitialize()
    assert optimizer.state[p]
    train(optimizer, p, gradients((3, 4))[:3])
    q = nn.Parameter(p.detach().clone())
    other = make(name, [q])
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(optimizer, p, gradients((3, 4))[3:])
    train(other, q, gradients((3, 4))[3:])
    assert torch.equal(p, q)


def test_refusals_hooks_and_names():
    p = nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match="AdamW got lr=-1"):
        optim.AdamW([p], lr=-1)
    with pytest.raises(ValueError, match=r"Muon got a parameter of shape \(3,\)"):
        optim.Muon([p])
    with pytest.raises(ValueError, match="relative_step=True"):
        optim.Adafactor([p], lr=0.1, relative_step=True)
    with pytest.raises(ValueError, match="nesterov=True with momentum=0"):
        optim.SGD([p], nesterov=True)
    with pytest.raises(ValueError, match="no Optimizer named 'No'"):
        optim.configure_optimizer("No", [p])
    optimizer = optim.configure_optimizer("adamw", [p], learning_rate=0.5)
    assert type(optimizer) is optim.AdamW
    assert optimizer.param_groups[0]["lr"] == 0.5
    seen = []
    handle = optimizer.register_zero_grad_pre_hook(lambda *a: seen.append("before"))
    optimizer.register_zero_grad_post_hook(lambda *a: seen.append("after"))
    optimizer.zero_grad()
    handle.remove()
    optimizer.zero_grad()
    assert seen == ["before", "after", "after"]
    assert optimizer.increment_global_step(p) == 1
    assert cstorch.optim.AdamW is optim.AdamW
