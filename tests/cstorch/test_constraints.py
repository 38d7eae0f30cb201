"""What the real system is publicly known to refuse is named offline, with its line, when that is asked for."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import cstorch
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from cstorch import constraints
from cstorch.command_line import main
from cstorch.errors import ConstraintError
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.register_buffer("table", torch.randn(6, 4))

    def forward(self, x):
        return self.layer(x)


BREAKS = {  # rule -> steps (w: model, compiled; x: float [3, 4], y: int [3]) that break it, and no other
    "value-read": [lambda w, x, y: below(x.sum())],
    "float64": [lambda w, x, y: w.compiled(x).double()],
    "returns-module": [lambda w, x, y: (w.compiled(x), nn.Identity())],
    "uncompiled-model": [lambda w, x, y: w.model(x)],
    "tensor-as-number": [lambda w, x, y: torch.add(x, x, alpha=x.mean())],
    "attention": [
        lambda w, x, y: F.scaled_dot_product_attention(x, x, x),
        lambda w, x, y: w.model.attention(x, x, x)[0],
        lambda w, x, y: w.model.encoder(x.unsqueeze(1)),
    ],
    "fused-cross-entropy": [
        lambda w, x, y: F.cross_entropy(w.compiled(x), y),
        lambda w, x, y: nn.CrossEntropyLoss()(w.compiled(x), y),
    ],
    "norm-of-weights": [lambda w, x, y: x + w.model.norm(w.model.table).sum()],
    "slicing": [
        lambda w, x, y: x[:, 1:],
        lambda w, x, y: x[..., ::2],
        lambda w, x, y: x.split(2, -1)[0],
        lambda w, x, y: torch.chunk(x, 2, dim=-1)[0],
        lambda w, x, y: w.compiled(x).narrow(1, 0, 2),
    ],
    "weight-indexing": [
        lambda w, x, y: w.model.table[y],
        lambda w, x, y: x + w.model.table[:3],
        lambda w, x, y: x + w.model.layer.weight.split(3)[0],
        lambda w, x, y: w.model.table.index_select(0, y),
    ],
    "weight-transpose": [
        lambda w, x, y: x @ w.model.layer.weight.t(),
        lambda w, x, y: x @ w.model.layer.weight.T,
        lambda w, x, y: x @ w.model.layer.weight.transpose(0, 1),
    ],
    "counting": [lambda w, x, y: F.one_hot(y, 6)],
    "bool-triangle": [lambda w, x, y: torch.triu(x > 0)],
    "bool-concat": [lambda w, x, y: torch.cat([x > 0, x > 1])],
    "device-types": [lambda w, x, y: x * cpu_mask(w)],
    "no-output": [lambda w, x, y: only_state(w)],
    "host-number": [lambda w, x, y: w.counter.scaled(w.compiled(x))],
}

FINE = [
    lambda w, x, y: w.compiled(x),
    lambda w, x, y: F.linear(x, w.model.layer.weight),
    lambda w, x, y: F.embedding(y, w.model.table),
    lambda w, x, y: x[:, None].transpose(1, 2),
    lambda w, x, y: w.model.norm(w.compiled(x)),
    lambda w, x, y: torch.cat([x, x]).to(torch.bfloat16),
    lambda w, x, y: -F.log_softmax(w.compiled(x), -1).gather(1, y[:, None]).mean(),
    lambda w, x, y: (y[:, None] == torch.arange(6, device=y.device)).float(),
]


class Counter:
    calls = 0

    def scaled(self, x):
        self.calls += 1
        return x * self.calls


def below(total):
    assert total < 99
    return total


def only_state(w):
    w.model.table.add_(1)


def cpu_mask(w):
    w.mask.add_(1)
    return w.mask.sum()


@pytest.fixture
def world(csx):
    model = Model().eval()
    return SimpleNamespace(model=model, compiled=cstorch.compile(model, csx), mask=torch.ones(4), counter=Counter())


def input_fn():
    return [(torch.randn(3, 4), torch.arange(3))] * 2


def run(step, batches=input_fn, steps=1):
    executor = cstorch.utils.data.DataExecutor(cstorch.utils.data.DataLoader(batches), num_steps=steps)
    for batch in executor:
        step(*batch)


def broken(step, batches=input_fn, steps=1):
    """Names of the rules that a step breaks."""
    cstorch.backends.csx.debug.check_constraints = True
    try:
        run(step, batches, steps)
    except ConstraintError as error:
        lines = [line for line in str(error).splitlines() if line.startswith("  - [")]
        return [line[5 : line.index("]")] for line in lines], str(error)
    finally:
        cstorch.backends.csx.debug.check_constraints = False
    return [], ""


CASES = [(rule, body) for rule, bodies in BREAKS.items() for body in bodies]


@pytest.mark.parametrize(("rule", "body"), CASES, ids=[rule for rule, _ in CASES])
def test_a_rule_is_broken_alone_and_at_its_line(world, rule, body):
    step = cstorch.trace(lambda x, y: body(world, x, y))
    if rule == "value-read":  # an assertion in an executor's loop is refused by cstorch itself
        cstorch.backends.csx.debug.check_constraints = True
        with pytest.raises(
            ConstraintError, match=r"\[value-read\] __bool__ in the step '<lambda>' \(.*test_constraints"
        ):
            step(*input_fn()[0])
        cstorch.backends.csx.debug.check_constraints = False
        return
    names, text = broken(step)
    assert names == [rule], text
    assert constraints.RULES[rule].source in text
    if rule not in ("returns-module", "no-output", "host-number"):
        assert "test_constraints.py:" in text
    cstorch.backends.csx.debug.silenced_constraints = (rule,)
    try:
        assert broken(cstorch.trace(lambda x, y: body(world, x, y))) == ([], "")
    finally:
        cstorch.backends.csx.debug.silenced_constraints = ()


@pytest.mark.parametrize("body", FINE)
def test_what_the_real_system_takes_is_not_named(world, body):
    assert broken(cstorch.trace(lambda x, y: body(world, x, y))) == ([], "")


def test_nothing_is_said_unless_asked(world):
    run(cstorch.trace(lambda x, y: x[:, 1:].double()))


def test_optimizers_and_schedulers_of_torch(world):
    optimizer = torch.optim.SGD(world.model.layer.parameters(), lr=0.1)

    def body(x, y):
        loss = world.compiled(x).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    assert broken(cstorch.trace(body))[0] == ["torch-optimizer"]
    torch.optim.lr_scheduler.ConstantLR(optimizer)
    assert broken(cstorch.trace(body))[0] == ["torch-optimizer", "torch-scheduler"]


class Averaged(cstorch.optim.SGD):
    """Keeps a mean of the parameters that `initial_state` does not name."""

    def update(self, parameter, gradient, group):
        super().update(parameter, gradient, group)
        state = self.state_of(parameter, group)
        if "mean" not in state:
            state["mean"] = torch.zeros_like(parameter)
        state["mean"].lerp_(parameter, 0.1)


class Complete(Averaged):
    def initial_state(self, parameter, group):
        return {**super().initial_state(parameter, group), "mean": torch.zeros_like(parameter)}


class OfTorch(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state["sum"] = torch.zeros_like(p)
            state["sum"].add_(p.grad)
            p.sub_(state["sum"], alpha=0.1)


class Early(OfTorch):
    def preinitialize(self):
        torch.rand(3)  # the step's own draws do not depend on whether rules are checked
        for p in self.param_groups[0]["params"]:
            self.state[p]["sum"] = torch.zeros_like(p)


def descent(world, optimizer):
    @cstorch.trace
    def step(x, y):
        optimizer.zero_grad()
        loss = world.compiled(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


class Counting(cstorch.optim.SGD):
    """Counts in Python, for which there is no tensor."""

    def update(self, parameter, gradient, group):
        state = self.state[parameter]
        state["count"] = state.get("count", 0) + 1
        super().update(parameter, gradient / state["count"], group)


@pytest.mark.parametrize("early", [False, True])
def test_numbers_that_an_optimizer_keeps_in_its_state(world, early):
    optimizer = Counting(world.model.layer.parameters())
    if early:
        for p in world.model.layer.parameters():
            optimizer.state[p]["count"] = 0
    names, text = broken(descent(world, optimizer))
    assert names == ["host-number"]
    assert "'count' of Counting in the step 'step'" in text


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize(
    ("make", "key"), [(Averaged, "'mean' of Averaged"), (OfTorch, "'sum' of OfTorch"), (Complete, ""), (Early, "")]
)
def test_state_that_nothing_makes_before_the_step(world, make, key, prepared):
    optimizer = make(world.model.layer.parameters())
    if prepared and hasattr(optimizer, "preinitialize"):
        optimizer.preinitialize()
    names, text = broken(descent(world, optimizer))
    assert names == (["late-state"] if key else [])
    assert f"{key} in the step 'step'" in text or not key


def test_rules_about_state_leave_training_as_it_is(world):
    def train(check):
        torch.manual_seed(1)
        model = nn.Linear(4, 4)
        optimizer = Early(model.parameters())
        compiled = cstorch.compile(model)
        step = cstorch.trace(
            lambda x: (optimizer.zero_grad(), F.dropout(compiled(x)).sum().backward(), optimizer.step())
        )
        cstorch.backends.csx.debug.check_constraints = check
        cstorch.backends.csx.debug.silenced_constraints = ("no-output",)
        try:
            run(step, lambda: [(torch.ones(3, 4),)] * 3, steps=3)
        finally:
            cstorch.backends.csx.debug.check_constraints = False
            cstorch.backends.csx.debug.silenced_constraints = ()
        return {**model.state_dict(), "sum": optimizer.state[model.weight]["sum"]}

    plain, checked = train(False), train(True)
    assert all(torch.equal(plain[name].cpu(), checked[name].cpu()) for name in plain)


@pytest.mark.parametrize("name", [n for n, kind in vars(cstorch.optim).items() if isinstance(kind, type)])
def test_optimizers_of_cstorch_make_their_state_before(world, name):
    if name != "Optimizer":
        optimizer = getattr(cstorch.optim, name)([world.model.layer.weight], lr=0.1)
        assert broken(descent(world, optimizer)) == ([], "")


def test_steps_that_become_several_programs(world):
    step = cstorch.trace(lambda x: world.compiled(x))
    names, text = broken(step, lambda: [(torch.ones(3, 4),), (torch.ones(2, 4),)], steps=2)
    assert names == ["dynamic-shape"]
    assert "a tensor of shape (2, 4) came where one of shape (3, 4)" in text
    world.model.train()
    assert broken(step, lambda: [(torch.ones(3, 4),)])[0] == ["static-graph"]


def test_batches(world):
    step = cstorch.trace(lambda x, y: world.compiled(x) + y.sum())
    assert broken(step, lambda: [(torch.ones(3, 4), torch.ones(4))])[0] == ["batch-dimension"]
    cstorch.backends.csx.debug.check_constraints = True
    try:
        with pytest.raises(ConstraintError, match=r"\[batch-outside-executor\]"):
            cstorch.trace(lambda x: world.compiled(x))(torch.ones(3, 4))
    finally:
        cstorch.backends.csx.debug.check_constraints = False


def test_weights_between_checkpoints(world):
    @cstorch.trace
    def step(x, y):
        return world.compiled(x)

    def loop(x, y):
        step(x, y)
        world.model.layer.weight.sum()

    names, text = broken(loop)
    assert names == ["weights-between-checkpoints"]
    assert "test_constraints.py:" in text
    assert broken(lambda x, y: (step(x, y), torch.zeros_like(world.model.layer.weight))) == ([], "")


def test_two_types_of_backend():
    cstorch.backend("CPU").close()
    cstorch.backends.csx.debug.check_constraints = True
    try:
        with pytest.raises(ConstraintError, match=r"\[device-types\] backends of the types CPU, CSX"):
            cstorch.backend("CSX")
    finally:
        cstorch.backends.csx.debug.check_constraints = False


def test_every_rule_has_a_test_a_source_and_advice():
    text = Path(__file__).read_text()
    for name, rule in constraints.RULES.items():
        assert name == rule.name
        assert f'"{name}"' in text or f"[{name}" in text
        assert rule.source.startswith("https://")
        assert rule.what[0].islower()
        assert not rule.what.endswith(".")
        assert rule.advice.endswith(".")


def test_rules_are_silenced_by_their_names_only():
    with pytest.raises(ValueError, match=r"expected a tuple of names of rules, which are in cstorch\.constraints"):
        cstorch.backends.csx.debug.silenced_constraints = ("slices",)


PROGRAM = """
import torch
import cstorch
def input_fn():
    return [(torch.ones(4, 3),)]
step = cstorch.trace(lambda batch: read(batch[0][:, 1:]))
read = lambda x: x
bad = cstorch.trace(lambda batch: batch[0].sum().item())
empty = cstorch.trace(lambda batch: batch[0].nonzero())
"""


def test_validate_strict_lists_them(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "strict_program.py").write_text(PROGRAM)

    def command(*arguments, status):
        result = CliRunner().invoke(main, ["validate", "--input-fn", "strict_program:input_fn", *arguments])
        if cstorch.current_backend(False, False) is not None:
            cstorch.backend().close()
        sys.modules.pop("strict_program", None)
        assert result.exit_code == status, result.output
        return result.output

    command("strict_program:step", status=0)
    found = json.loads(command("--strict", "--json", "strict_program:step", status=1))["findings"]
    assert len(found) == 1
    assert found[0].startswith("[slicing] __getitem__ in the step '<lambda>' (")
    assert "strict_program.py:6)" in found[0]
    command("--strict", "--silence", "slicing", "strict_program:step", status=0)
    assert "--silence" in command("--strict", "--silence", "slices", "strict_program:step", status=2)
    assert "[value-read: https://" in command("--strict", "strict_program:bad", status=1)
    assert "[dynamic-shape: https://" in command("--strict", "strict_program:empty", status=1)
    rules = CliRunner().invoke(main, ["validate", "--rules"]).output
    assert all(f"\n{name}\n" in "\n" + rules for name in constraints.RULES)
