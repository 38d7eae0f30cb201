"""`cstorch.backend("jax")` beside the cpu backend, on an example of cstorch, and what it refuses."""

import os
import runpy
import sys
from pathlib import Path

import cstorch
import pytest
import torch
from cstorch import plugins
from cstorch.errors import BackendError

SOURCES = Path(os.environ.get("CSTORCH_SOURCES", Path(__file__).parents[3]))


def test_the_installed_plugin_registers_the_backend():
    (plugin,) = [p for p in plugins.list() if p.name == "jax"]
    assert plugin.problem is None
    with cstorch.backend("JAX") as backend:
        assert repr(backend) == "<JAX backend on csx>"
        assert backend.is_csx
    assert torch.device("csx").type == "csx"


def test_an_example_trains_as_on_the_cpu(tmp_path, monkeypatch):
    program = SOURCES / "examples" / "digits_cstorch.py"
    states = []
    for backend in ("CPU", "jax"):
        monkeypatch.setattr(sys, "argv", [str(program), "--backend", backend, "--steps", "20", "--out", str(tmp_path / backend)])
        runpy.run_path(str(program), run_name="__main__")
        states.append(cstorch.load(tmp_path / backend / "checkpoint_20.mdl"))
    expected, found = states
    assert expected["model"].keys() == found["model"].keys()
    for name, value in expected["model"].items():
        torch.testing.assert_close(found["model"][name], value, rtol=1e-2, atol=1e-3, msg=lambda m: f"{name}: {m}")


def test_state_that_shares_memory_is_refused():
    with cstorch.backend("jax") as backend:
        whole = torch.zeros(4)
        model = torch.nn.Module()
        model.register_buffer("low", whole[:2])
        model.register_buffer("high", whole[2:])
        cstorch.compile(model, backend)

        @cstorch.trace
        def step(x):
            model.low.add_(x)
            model.high.add_(x)

        try:
            step(torch.ones(2))
        except BackendError as error:
            assert "share memory" in str(error)
        else:  # moved to csx one by one, they no longer do
            assert model.low.cpu().tolist() == model.high.cpu().tolist() == [1, 1]


def test_a_dtype_that_jax_does_not_share_is_refused():
    with cstorch.backend("jax"), pytest.raises(BackendError, match="float8_e5m2, which the jax backend does not have"):
        cstorch.trace(lambda x: x.float().sum())(torch.ones(2).to(torch.float8_e5m2))
