"""An assert statement about a tensor in a step is checked after every run; attributes that a step only sets follow."""

import cstorch
import pytest
import torch
from cstorch.errors import ValueReadError
from programs import fail_in_a_step
from torch import nn


def compiled(source):
    """A step as a module compiles that pytest has not rewritten."""
    scope = {"torch": torch}
    exec(source, scope)
    return scope["step"]


PLAIN = {
    "true": "def step(x):\n    assert x.sum() < 10\n    return x",
    "message": "def step(x):\n    assert torch.all(x < 5), 'large'\n    return x",
    "not": "def step(x):\n    assert not (x.sum() >= 10)\n    return x",
    "equal": "def step(x):\n    assert not torch.equal(x, torch.full_like(x, 5.0))\n    return x",
    "allclose": "def step(x):\n    assert not torch.allclose(x, torch.full_like(x, 5.0), atol=0.1)\n    return x",
    "shape": "def step(x):\n    assert not x.equal(x[:1]) and x.sum() < 10\n    return x",
    "and": "def step(x):\n    assert x.sum() > -1 and x.sum() < 10\n    return x",
}


@pytest.mark.parametrize("form", PLAIN)
def test_assertions_are_checked_after_each_run(csx, form):
    step = cstorch.trace(compiled(PLAIN[form]))
    for i in range(5):
        step(torch.full((2,), float(i)))
    with pytest.raises(AssertionError, match=r"fails at .*:2, after a run of the step: the value is"):
        step(torch.full((2,), 5.0))
    step(torch.ones(2))
    assert len(step.programs) == 1


def test_assertions_as_pytest_compiles_them(csx):
    @cstorch.trace
    def step(x, y):
        assert x.sum() < 10
        assert not x.sum() > 10
        assert x[0] == y[0], "message"

    step(torch.ones(2), torch.ones(2))
    with pytest.raises(AssertionError, match=r"assert x\.sum\(\) < 10 fails at .*test_assertions\.py:"):
        step(torch.ones(2) * 9, torch.ones(2) * 9)
    with pytest.raises(AssertionError, match=r"assert x\[0\] == y\[0\]"):
        step(torch.ones(2), torch.zeros(2))
    assert len(step.programs) == 1


@pytest.mark.parametrize(
    "source",
    [
        "def step(x):\n    assert x.sum() > 0 or x.sum() < 5",
        "def step(x):\n    if x.sum() > 0:\n        return x",
        "def step(x):\n    return x if x.sum() > 0 else -x",
        "def step(x):\n    while x.sum() > 0:\n        x = x - 1",
        "def step(x):\n    return not x.sum()",
        "def step(x):\n    assert -1 < x.sum() < 5",
    ],
)
def test_other_questions_for_a_tensors_truth_are_refused(csx, source):
    with pytest.raises(ValueReadError, match="outside of a step closure"):
        cstorch.trace(compiled(source))(torch.ones(2))


def test_in_the_loop_of_an_executor_an_assertion_is_refused(csx):
    step = cstorch.trace(compiled(PLAIN["true"]))
    executor = cstorch.utils.data.DataExecutor(cstorch.utils.data.DataLoader(lambda: [torch.ones(2)] * 2), num_steps=2)
    with pytest.raises(ValueReadError, match="outside of a step closure"):
        for batch in executor:
            step(batch)


class Keeping(nn.Linear):
    def __init__(self):
        super().__init__(2, 1)
        self.empty, self.number = None, float("inf")

    def forward(self, x):
        out = super().forward(x)
        self.new = {"out": out, "kind": "train"}
        self.empty, self.number = out.detach(), out.sum()
        return self.empty * 2


def test_attributes_that_a_step_only_sets_get_new_tensors_each_run(csx):
    torch.manual_seed(0)
    eager = Keeping()
    model = Keeping()
    model.load_state_dict(eager.state_dict())
    cstorch.compile(model, csx)
    step = cstorch.trace(lambda x: model(x))
    kept = []
    for i in range(3):
        x = torch.full((2,), float(i))
        step(x)
        eager(x)
        for found, expected in (
            (model.new["out"], eager.new["out"]),
            (model.empty, eager.empty),
            (model.number, eager.number),
        ):
            assert found.device.type == "csx"
            torch.testing.assert_close(found.cpu(), expected, check_device=False)
        assert model.new["kind"] == "train"
        kept.append((model.empty, eager.empty))
    assert len(step.programs) == 1
    for found, expected in kept:  # each run has left tensors of its own
        torch.testing.assert_close(found.cpu(), expected)
    other = cstorch.trace(lambda x: model(x) + 1)
    other(torch.ones(2))
    step(torch.zeros(2))
    torch.testing.assert_close(model.empty.cpu(), eager(torch.zeros(2)) / 2)
    assert (len(step.programs), len(other.programs)) == (1, 1)


def test_a_failed_step_leaves_no_tensor(csx):
    model = Keeping()
    fail_in_a_step(csx, model)
    assert (model.empty, model.number, hasattr(model, "new")) == (None, float("inf"), False)
