"""A program notices every change of an optimizer's state, though it compares the state after somebody looked only."""

import collections
import copy
import io
import pickle

import cstorch
import pytest
import torch
from cstorch.tracing.observed_state import ObservedState
from programs import batches, mlp, trains_as_eager


def _other_tensor(optimizer, kept):
    table = next(iter(optimizer.state.values()))
    table["exp_avg"] = torch.full_like(table["exp_avg"], 0.5)


def _kept_table(optimizer, kept):
    kept["table"]["exp_avg"] = torch.full_like(kept["table"]["exp_avg"], 0.5)


def _kept_state_dict(optimizer, kept):
    table = kept["dict"]["state"][0]
    table["exp_avg_sq"] = torch.full_like(table["exp_avg_sq"], 0.5)


def _attribute_table(optimizer, kept):
    parameter = optimizer.param_groups[0]["params"][0]
    vars(optimizer)["state"][parameter]["exp_avg"] = torch.ones_like(parameter)


def _removed_entry(optimizer, kept):
    optimizer.state.pop(optimizer.param_groups[0]["params"][0])


def _update(optimizer, kept):
    parameter = optimizer.param_groups[0]["params"][0]
    optimizer.state.update({parameter: {k: v.clone() + 0.25 for k, v in optimizer.state[parameter].items()}})


def _copied_back(optimizer, kept):
    optimizer.state = copy.deepcopy(kept["tables"])
    by_position = list(optimizer.state.values())
    optimizer.state = collections.defaultdict(dict, zip(optimizer.param_groups[0]["params"], by_position, strict=True))


CHANGES = [_other_tensor, _kept_table, _kept_state_dict, _attribute_table, _removed_entry, _update, _copied_back]


def update(model, optimizer, x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_steps_counts(csx, change):
    kept = {}

    def between(run, model, optimizer, x, i):
        if i == 2:
            tables = dict(optimizer.state)
            kept.update(table=next(iter(tables.values())), dict=optimizer.state_dict(), tables=tables)
        if i == 5:
            change(optimizer, kept)

    trains_as_eager(
        lambda run, model, optimizer, x, i: update(model, optimizer, x),
        optimizer=lambda p: torch.optim.Adam(p, lr=0.01),
        steps=9,
        between=between,
    )


def test_the_state_is_not_compared_while_nobody_looks(csx, monkeypatch):
    model = mlp()
    compiled = cstorch.compile(model, csx)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step = cstorch.trace(lambda x: update(compiled, optimizer, x))

    looks = []
    plain = ObservedState.entries
    monkeypatch.setattr(ObservedState, "entries", lambda self: looks.append(1) or plain(self))
    for x in batches(3, 3, 8):
        step(x)
    looks.clear()
    for x in batches(5, 3, 8):
        step(x)
    assert not looks
    table = next(iter(optimizer.state.values()))
    for x in batches(3, 3, 8):
        step(x)
    assert len(looks) == 3, "a table is kept, so each step must look"
    del table
    for x in batches(3, 3, 8):
        step(x)
    assert len(looks) == 4


def test_every_access_is_counted_and_copies_are_plain():
    state = ObservedState({"a": {"step": 1}})
    uses = [
        lambda: state["a"],
        lambda: state["new"],
        lambda: state.get("a"),
        lambda: list(state),
        lambda: dict(state),
        lambda: {**state},
        lambda: list(reversed(state)),
        lambda: state.items(),
        lambda: state.values(),
        lambda: state | {},
        lambda: {} | state,
        lambda: state.copy(),
        lambda: copy.copy(state),
        lambda: copy.deepcopy(state),
        lambda: pickle.dumps(state),
        lambda: torch.save(state, io.BytesIO()),
        lambda: state.setdefault("b", {}),
        lambda: state.update(c={}),
        lambda: state.pop("c"),
        lambda: state.popitem(),
        lambda: state.__delitem__("a"),
        lambda: state.clear(),
    ]
    for use in uses:
        before = state.accesses
        use()
        assert state.accesses > before, use
    state["a"] = {"step": 1}
    for made in (copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state)), state.copy()):
        assert type(made) is collections.defaultdict
        assert made == {"a": {"step": 1}}
        assert made["missing"] == {}
