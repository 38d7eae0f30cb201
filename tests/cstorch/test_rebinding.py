"""What a step's Python leaves behind: state carries over as in eager, numbers follow, the rest is named."""

import argparse
import collections
import copy
import time
import warnings

import cstorch
import pytest
import torch
from cstorch.errors import StateError
from programs import batches, same_as_eager
from torch import nn

SCALE = 1.0
HIDDEN = None


class Recurrent(nn.Module):
    """Keeps its hidden state between calls, starting with None."""

    def __init__(self, kind="tensor"):
        super().__init__()
        self.cell = nn.RNNCell(4, 4)
        self.hidden = None
        self.kind = kind

    def forward(self, x):
        if self.kind == "tuple":
            h, c = self.hidden or (None, torch.zeros_like(x))
            h = self.cell(x, h)
            self.hidden = h.detach(), 0.5 * c + h.detach()
            return h + c
        if self.kind == "list":
            before = None if self.hidden is None else self.hidden[0]
            self.hidden = [self.cell(x, before).detach()]
            return self.cell(x, self.hidden[0])
        out = self.cell(x, self.hidden)
        self.hidden = out.detach()
        return out


@pytest.mark.parametrize("kind", ["tensor", "tuple", "list"])
def test_hidden_state_that_starts_with_none_carries_over(csx, kind):
    def train(side):
        model = Recurrent(kind).to(side.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @side.trace
        def step(x):
            optimizer.zero_grad()
            out = model(x)
            out.square().mean().backward()
            optimizer.step()
            side.see(out)

        for index, x in enumerate(batches(9, 3, 4)):
            if index in (4, 7):
                model.hidden = None
            step(x)
        return model

    assert same_as_eager(train).count == 2


def test_hidden_state_given_from_the_loop_is_taken_over(csx):
    def train(side):
        model = Recurrent().to(side.device)
        step = side.trace(lambda x: side.see(model(x)))
        for index, x in enumerate(batches(8, 3, 4)):
            if index in (3, 5):
                model.hidden = torch.full((3, 4), 0.1 * index).to(side.device)
            step(x)
        return model.hidden

    assert same_as_eager(train).count == 2


class Average:
    """An exponential moving average as many programs write it."""

    def __init__(self, model, filled):
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()} if filled else {}

    def update(self, model):
        for name, p in model.named_parameters():
            before = self.shadow.get(name)
            self.shadow[name] = p.detach() * 1.0 if before is None else 0.9 * before + 0.1 * p.detach()


@pytest.mark.parametrize("filled", [True, False])
def test_an_average_of_weights_on_a_plain_object(csx, filled):
    def train(side):
        model = nn.Linear(4, 2).to(side.device)
        average = Average(model, filled)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @side.trace
        def step(x):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            average.update(model)

        for x in batches(5, 3, 4):
            step(x)
        return model, average.shadow

    assert same_as_eager(train).count == (1 if filled else 2)


def test_variables_that_a_step_rebinds(csx):
    def train(side):
        global HIDDEN
        HIDDEN = torch.zeros(4).to(side.device)
        running = torch.ones(4).to(side.device)
        holder = argparse.Namespace(last=torch.zeros(4).to(side.device))
        history = collections.deque([torch.zeros(4).to(side.device)] * 2)

        @side.trace
        def step(x):
            global HIDDEN
            nonlocal running
            HIDDEN = 0.5 * HIDDEN + x
            running = running * 0.9 + holder.last
            holder.last = x + history[0]
            history[0] = x * 2
            side.see(HIDDEN, running, holder.last)

        for x in batches(5, 4):
            step(x)
        return HIDDEN, running, holder.last, history[0]

    assert same_as_eager(train).count == 1


def test_a_variable_reset_in_the_loop_is_seen(csx):
    def train(side):
        running = torch.ones(4).to(side.device)

        @side.trace
        def step(x):
            nonlocal running
            running = running * 0.9 + x
            side.see(running)

        for index, x in enumerate(batches(6, 4)):
            if index == 3:
                running = torch.zeros(4).to(side.device)
            step(x)

    same_as_eager(train)


def test_an_attribute_set_to_a_number_of_the_step_follows_it(csx):
    holder, model = argparse.Namespace(count=0, last=0), nn.Identity()

    @cstorch.trace
    def step(x, i):
        holder.last = i * 2
        model.progress = i / 4
        return x

    for i in range(4):
        step(torch.ones(1), i)
        assert (holder.last, model.progress) == (2 * i, i / 4)
        assert type(holder.last) is int


def test_appending_to_lists_repeats_with_the_values_of_each_run(csx):
    class Model(nn.Linear):
        losses = []

    model = Model(2, 2)
    model.outputs, model.tables = [], {"loss": []}
    seen = []

    @cstorch.trace
    def step(x, i):
        y = x.sum()
        model.outputs.append({"y": y, "i": i, "kind": "train"})
        model.tables["loss"].extend([y, y * 2])
        model.losses.append(y)
        seen.append(i)
        model(x)

    cstorch.compile(model, csx)
    for i in range(4):
        if i == 2:  # what the step finds now is another list
            kept, model.outputs, model.tables, model.losses = model.outputs, [], {"loss": []}, []
        step(torch.full((2,), float(i)), i)
    assert kept == [{"y": torch.tensor(2.0 * i), "i": i, "kind": "train"} for i in range(2)]
    assert model.outputs == [{"y": torch.tensor(2.0 * i), "i": i, "kind": "train"} for i in (2, 3)]
    assert model.tables["loss"] == [4.0, 8.0, 6.0, 12.0]
    assert (Model.losses, model.losses) == ([0.0, 2.0], [4.0, 6.0])
    assert all(type(y) is torch.Tensor for y in model.tables["loss"])
    assert seen == [0, 1, 2, 3]
    assert len(step.programs) == 1


def test_appending_what_stands_still_is_warned_of(csx):
    rows = []

    @cstorch.trace
    def step(x):
        rows.append((x.sum(), time.time()))
        return x + 1

    with pytest.warns(UserWarning, match=r"appends [0-9.]+ to the list rows.*will append the same"):
        step(torch.ones(2))
    step(torch.ones(2) * 2)
    assert [float(value) for value, _ in rows] == [2, 4]


def test_appending_a_traced_tensor_in_the_loop_of_an_executor_is_named(csx):
    losses = []

    @cstorch.trace
    def step(x):
        losses.append(x.sum())

    executor = cstorch.utils.data.DataExecutor(cstorch.utils.data.DataLoader(lambda: [torch.ones(2)] * 3), num_steps=3)
    with pytest.raises(StateError, match=r"list losses.*@cstorch\.step_closure"):
        for batch in executor:
            step(batch)
    assert losses == []


def test_state_that_changes_its_shape_is_named(csx):
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.zeros(1, 4))

        def forward(self, x):
            self.cache = torch.cat([self.cache, x])
            return x

    model = Cache()
    cstorch.compile(model)
    before = model.cache
    with pytest.raises(StateError, match=r"Cache\.cache to a traced tensor \(2, 4\).*a tensor \(1, 4\)"):
        cstorch.trace(lambda x: model(x))(torch.ones(1, 4))
    assert model.cache is before


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.norms, self.table = 0, [], {}

    def forward(self, x):
        self.calls += 1
        self.norms.append(1.5)
        self.table["shape"] = len(x)
        return x


def test_python_state_that_will_stand_still_is_named_once(csx):
    model = Counting()
    cstorch.compile(model)
    step = cstorch.trace(lambda x: model(x))
    with pytest.warns(UserWarning, match=r"changes Counting\.norms\[0\], Counting\.table\['shape'\]"):
        step(torch.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(torch.ones(2))
    assert len(step.programs) == 1


def test_ordinary_modules_change_nothing_worth_a_warning(csx):
    model = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))
    )
    cstorch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters())

    @cstorch.trace
    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(torch.ones(3, 4))
        step(torch.ones(3, 4))


# -- what the step reads ----------------------------------------------------------------------------------


class Counter:
    def __init__(self):
        self.n, self.calls = 1.0, 0

    @property
    def value(self):
        return self.doubled()

    def doubled(self):
        return 2 * self.n

    def tick(self):
        self.calls += 1


TABLE = {"scale": 1.0, "unread": 0}


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.flag, self.unread, self.act = 1.0, "plus", 0, torch.relu
        self.head = nn.Linear(4, 4)
        self.config = argparse.Namespace(scale=2.0)
        self.register_buffer("offset", torch.ones(4))

        self.table = {"gain": 1.0, "list": [1.0, 2.0], "unread": 0, "nested": {"k": 1.0}}
        self.holder = Counter()

    def forward(self, x):
        y = self.act(self.head(x)) * self.weight * self.config.scale * SCALE + self.offset
        y = y * self.helper() * self.holder.value * TABLE["scale"]
        return y if self.flag == "plus" else -y

    def helper(self):
        return self.table["gain"] * self.table["list"][-1] * self.table["nested"].get("k", 3.0)


def replace_head(model, device):
    torch.manual_seed(9)
    model.head = nn.Linear(4, 4).to(device)


CHANGES = {
    "number": lambda model, device: setattr(model, "weight", 0.25),
    "string": lambda model, device: setattr(model, "flag", "minus"),
    "function": lambda model, device: setattr(model, "act", torch.tanh),
    "config": lambda model, device: setattr(model.config, "scale", 0.5),
    "module": replace_head,
    "buffer": lambda model, device: setattr(model, "offset", torch.zeros(4).to(device)),
    "parameter": lambda model, device: setattr(model.head, "weight", nn.Parameter(torch.ones(4, 4).to(device))),
    "global": lambda model, device: globals().update(SCALE=3.0),
    "entry": lambda model, device: model.table.update(gain=3.0),
    "item": lambda model, device: model.table["list"].append(5.0),
    "nested entry": lambda model, device: model.table["nested"].pop("k"),
    "property": lambda model, device: setattr(model.holder, "n", 4.0),
    "global entry": lambda model, device: TABLE.update(scale=7.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_step_reads_is_noticed_when_it_changes(csx, name):
    def train(side):
        globals().update(SCALE=1.0)
        TABLE["scale"] = 1.0
        model = Weighted().to(side.device)
        step = side.trace(lambda x: side.see(model(x)))
        for index, x in enumerate(batches(4, 3, 4)):
            model.unread = model.table["unread"] = TABLE["unread"] = index
            model.holder.tick()
            if index == 2:
                CHANGES[name](model, side.device)
            step(x)

    assert same_as_eager(train).count == 2


def test_dropout_p_may_change(csx):
    model = nn.Dropout(0.0)
    cstorch.compile(model)
    seen = []
    step = cstorch.trace(lambda x: cstorch.step_closure(seen.append)(model(x)))
    step(torch.ones(200))
    model.p = 1.0
    with pytest.warns(UserWarning, match=r"Dropout\.p was 0\.0 and is 1\.0 now"):
        step(torch.ones(200))
    assert seen[0].sum() == 200
    assert seen[1].sum() == 0


def test_variables_that_the_step_reads_are_noticed(csx):
    def train(side):
        factor, model = 1.0, nn.Linear(4, 4).to(side.device)
        step = side.trace(lambda x: side.see(model(x) * factor))
        for index, x in enumerate(batches(6, 3, 4)):
            factor = 1.0 if index < 2 else 2.0
            if index == 4:
                model = nn.Linear(4, 4).to(side.device)
            step(x)

    assert same_as_eager(train).count == 3


def test_a_copy_that_a_step_makes_is_that_of_each_step(csx):
    def train(side):
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).to(side.device)

        @side.trace
        def step(x):
            before, mean = copy.deepcopy(model), copy.deepcopy(model[1].running_mean)
            side.see(model(x))
            side.see(model[1].running_mean - mean)
            side.see(model[1].num_batches_tracked - before[1].num_batches_tracked)
            side.see(before[1].num_batches_tracked.float() * before[1].running_var)

        for x in batches(4, 6, 4):
            step(x)

    assert same_as_eager(train).count == 1
