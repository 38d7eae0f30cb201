"""Fixtures: a fresh context for every test, the graph interpreter by default, one compile cache for native tests."""

from __future__ import annotations

import os

import cstorch
import pytest
import torch
from cstorch.tracing.context import context


def pytest_collection_modifyitems(config, items):
    """Leave the tests marked big out, unless they are asked for."""
    if "big" not in config.option.markexpr:
        big = [item for item in items if item.get_closest_marker("big") is not None]
        config.hook.pytest_deselected(items=big)
        items[:] = [item for item in items if item not in big]


@pytest.fixture(scope="session")
def compile_cache(tmp_path_factory):
    """One folder for all processes that run tests."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder /= "compile_cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def fresh(request, monkeypatch, tmp_path, compile_cache):
    """Each test starts with no backend, a fixed seed, its own working folder, and interprets unless marked native."""
    monkeypatch.chdir(tmp_path)
    if request.node.get_closest_marker("native") is None:
        monkeypatch.setenv("CSTORCH_INTERPRET", "1")
    else:
        monkeypatch.delenv("CSTORCH_INTERPRET", raising=False)
    torch.manual_seed(0)
    # torch.testing._internal, which some tests import, forbids setting the flags of backends for the whole process.
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    # Lightning leaves LOCAL_RANK behind, and with it a later script waits for processes that nobody starts.
    environment = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(environment)
    if context.backend is not None:
        context.backend.close()
    context.reset()


@pytest.fixture
def csx(compile_cache):
    with cstorch.backend("CSX", compile_dir=compile_cache) as backend:
        yield backend
