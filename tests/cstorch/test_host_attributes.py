"""Numbers that methods assign, and entries of host tensors: those of each step, with one program for all of them."""

import cstorch
import pytest
import torch
from cstorch.errors import TraceError
from programs import fail_in_a_step
from torch import nn


class Annealed(nn.Linear):
    """Counts its calls and the epochs, in the step and between steps."""

    total = 0

    def __init__(self):
        super().__init__(2, 1, bias=False)
        nn.init.ones_(self.weight)
        self.calls, self.beta, self.width = 0, 1.0, 2
        self._seen = 0.5

    def forward(self, x):
        self.calls += 1
        self.total += 2
        self._seen *= 2
        if self.calls >= 4:
            x = -x
        return super().forward(x) * self.beta + self.calls

    def next_epoch(self):
        self.beta = self.beta / 2


def outputs(model, step):
    found = []
    for i in range(6):
        found.append(step(torch.full((2,), float(i))).item())
        if i % 2:
            model.next_epoch()
    return found, model.calls, model.total, model._seen, model.beta, Annealed.total


def test_counts_and_annealed_weights_are_those_of_each_step(csx):
    eager = Annealed()
    expected = outputs(eager, eager)
    model = Annealed()
    cstorch.compile(model, csx)
    step, kept = cstorch.trace(lambda x: keep(model(x))), []
    keep = cstorch.step_closure(lambda y: kept.append(y))

    def run(x):
        step(x)
        return kept.pop()

    assert outputs(model, run) == expected
    assert len(step.programs) == 2  # before and after the fourth call
    assert type(model.calls) is int
    assert type(model.beta) is float
    assert "next_epoch" not in vars(model)


class Plain:
    """An object that is no module."""

    def __init__(self):
        self.count, self.limit = 0, 10

    def add(self, x):
        self.count += 1
        return x * self.count


def test_attributes_of_plain_objects(csx):
    counter = Plain()
    seen = []
    keep = cstorch.step_closure(lambda y: seen.append(y.tolist()))
    step = cstorch.trace(lambda x: keep(counter.add(x)))
    for _ in range(3):
        step(torch.ones(2))
    counter.count = 10
    step(torch.ones(2))
    assert seen == [[1, 1], [2, 2], [3, 3], [11, 11]]
    assert (counter.count, len(step.programs)) == (11, 1)


def test_a_failed_step_leaves_the_numbers_as_they_were(csx):
    model = Annealed()
    fail_in_a_step(csx, model)
    assert (model.calls, "total" in vars(model), model.total, model._seen) == (0, False, 0, 0.5)


def test_a_number_that_only_the_constructor_assigns_is_configuration(csx):
    model = Annealed()
    cstorch.compile(model, csx)
    step = cstorch.trace(lambda x: x * model.width)
    step(torch.ones(2))
    model.width = 3
    with pytest.warns(UserWarning, match=r"Annealed\.width was 2 and is 3 now"):
        step(torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float64])
def test_entries_of_a_host_tensor_are_those_of_each_step(csx, dtype):
    table = (torch.rand(3, 5, generator=torch.Generator().manual_seed(0)) * 100).to(dtype)
    seen = []
    keep = cstorch.step_closure(lambda y, z: seen.append((y, z)))

    @cstorch.trace
    def step(x, epoch, i):
        entry = table[epoch, i - 1]
        keep(entry, x * entry)

    for epoch in range(3):
        for i in range(5):
            if (epoch, i) == (2, 0):
                table += 1
            step(torch.ones(2), epoch, i)
            entry, product = seen.pop()
            assert entry.dtype == dtype
            assert entry == table[epoch, i - 1]
            assert torch.equal(product, torch.ones(2) * table[epoch, i - 1])
    assert len(step.programs) == 1
    with pytest.raises(IndexError):
        step(torch.ones(2), 3, 0)


def add(table, x, i):
    table[i] += x.sum()


def add_in_place(table, x, i):
    table[i].add_(1)


def assign(table, x, i):
    table[i] = x.sum()


def assign_number(table, x, i):
    table[0] = 7.0


def change_view(table, x, i):
    table[1:].mul_(2)


@pytest.mark.parametrize("change", [add, add_in_place, assign, assign_number, change_view])
def test_changing_a_part_of_a_host_tensor_is_refused(csx, change):
    table = torch.ones(3)
    step = cstorch.trace(lambda x, i: change(table, x, i))
    with pytest.raises(TraceError, match=r"test_host_attributes\.py.*changes a part of a cpu tensor.*\.to\(.csx.\)"):
        step(torch.ones(2), 1)
    assert table.tolist() == [1, 1, 1]


def test_changing_a_part_of_what_the_step_made_is_not(csx):
    seen = []
    keep = cstorch.step_closure(lambda y: seen.append(y.tolist()))

    @cstorch.trace
    def step(x):
        mask = torch.zeros(3)
        mask[1] = 5.0
        mask[1:].add_(1)
        keep(x * mask)

    for i in range(2):
        step(torch.full((3,), float(i)))
    assert seen == [[0, 0, 0], [0, 6, 1]]
