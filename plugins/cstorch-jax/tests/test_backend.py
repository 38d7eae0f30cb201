"""`cstorch.backend("jax")` beside the cpu backend, on an example of cstorch, and what it refuses."""

import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import cstorch
import pytest
import torch
from cstorch import plugins
from cstorch.errors import BackendError
from cstorch_jax.executable import XlaExecutable
from torch.fx.experimental.proxy_tensor import make_fx

SOURCES = Path(os.environ.get("CSTORCH_SOURCES", Path(__file__).parents[3]))


def test_the_installed_plugin_registers_the_backend():
    (plugin,) = [p for p in plugins.list() if p.name == "jax"]
    assert plugin.problem is None
    with cstorch.backend("JAX") as backend:
        assert repr(backend) == "<JAX backend on csx:0>"
        assert backend.is_csx
    assert torch.device("csx").type == "csx"


def test_an_example_trains_as_on_the_cpu(tmp_path, monkeypatch):
    program = SOURCES / "examples" / "digits_cstorch.py"
    states = []
    for backend in ("CPU", "jax"):
        arguments = ["--backend", backend, "--steps", "10", "--out", str(tmp_path / backend)]
        monkeypatch.setattr(sys, "argv", [str(program), *arguments])
        runpy.run_path(str(program), run_name="__main__")
        states.append(cstorch.load(tmp_path / backend / "checkpoint_10.mdl"))
    expected, found = states
    assert expected["model"].keys() == found["model"].keys()
    for name, value in expected["model"].items():
        if name not in ("0.bias", "4.bias") and "running_mean" not in name:  # batch norm cancels these biases: noise
            torch.testing.assert_close(found["model"][name], value, rtol=1e-2, atol=1e-3)


def test_state_that_shares_memory_is_refused():
    graph = make_fx(lambda a, b: (a.add_(1), b.add_(1)))(torch.zeros(2), torch.zeros(2))
    whole = torch.zeros(4)
    run = XlaExecutable(SimpleNamespace(graph=graph, state=[None, None], name="train"), [whole[:2], whole[2:]])
    with pytest.raises(BackendError, match="two state tensors of the step 'train' share memory"):
        run([whole[:2], whole[2:]])
    left = [torch.zeros(2), torch.zeros(2)]
    run(left)
    assert [t.tolist() for t in left] == [[1, 1], [1, 1]]


def test_a_dtype_that_jax_does_not_share_is_refused():
    with cstorch.backend("jax"), pytest.raises(BackendError, match="float8_e5m2, which the jax backend does not have"):
        cstorch.trace(lambda x: x.float().sum())(torch.ones(2).to(torch.float8_e5m2))
