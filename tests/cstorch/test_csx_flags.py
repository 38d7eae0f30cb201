"""The flags of `backends.csx`: each is checked when it is assigned, and does what it says."""

from __future__ import annotations

import cstorch
import pytest
import torch

FLAGS = [
    ("precision", "optimization_level", 1, [0, 2], [3, -1, True, 1.0, "1", None]),
    ("performance", "transfer_processes", 5, [1, 8], [0, -1, True, 2.0, "5", None]),
    ("performance", "use_speculative_optimizers", True, [False], [1, None, "yes"]),
    ("debug", "lazy_initialization", True, [False], [0, None, "yes"]),
    ("debug", "debug_args", None, [{"a": 1}], [1, "a", {1: 2}]),
    ("debug", "ini", None, [{"a": True}], [1, "a", {1: 2}]),
]


@pytest.mark.parametrize(("group", "name", "default", "valid", "invalid"), FLAGS)
def test_a_flag_is_checked_when_it_is_assigned(monkeypatch, group, name, default, valid, invalid):
    flags = getattr(cstorch.backends.csx, group)
    assert getattr(flags, name) == default
    monkeypatch.setattr(flags, name, default)
    for value in valid:
        setattr(flags, name, value)
        assert getattr(flags, name) == value
    for value in invalid:
        with pytest.raises(ValueError, match=rf"csx\.{group}\.{name} was set to .*, expected"):
            setattr(flags, name, value)
    assert getattr(flags, name) == valid[-1]


def test_without_lazy_initialization_a_model_has_its_values_at_once(csx, monkeypatch):
    weights = []
    for lazy in (True, False):
        monkeypatch.setattr(cstorch.backends.csx.debug, "lazy_initialization", lazy)
        torch.manual_seed(3)
        with csx.device:
            linear = torch.nn.Linear(4, 4)
        assert linear.weight.is_pending is lazy
        weights.append(linear.weight.detach().cpu())
    torch.manual_seed(3)
    eager = torch.nn.Linear(4, 4).weight.detach()
    assert all(torch.equal(weight, eager) for weight in weights)
