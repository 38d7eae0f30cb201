"""`cerebras.pytorch` is the same code under the reference's name."""

import subprocess
import sys

import pytest

NAMES = [
    "",
    ".utils",
    ".utils.data",
    ".utils.data.utils",
    ".utils.profiler",
    ".utils.tensorboard",
    ".distributed",
    ".backend",
    ".backends",
    ".storage",
    ".errors",
]


@pytest.mark.parametrize("name", NAMES)
def test_modules_are_the_same_objects(name):
    code = f"""
import importlib
alias = importlib.import_module("cerebras.pytorch{name}")
real = importlib.import_module("cstorch{name}")
assert alias is real, (alias, real)
assert real.__spec__.name == "cstorch{name}", real.__spec__
assert real.__name__ == "cstorch{name}"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_is_used_as_the_reference_is():
    import cerebras.pytorch as cs
    import cstorch
    from cerebras.pytorch.backend import Backend
    from cerebras.pytorch.utils.data import DataExecutor

    assert cs is cstorch
    assert Backend is cstorch.Backend
    assert DataExecutor is cs.utils.data.DataExecutor
    with pytest.raises(ModuleNotFoundError):
        import cerebras.pytorch.nothing  # noqa: F401


def test_cerebras_stays_a_namespace_package():
    import cerebras

    assert cerebras.__file__ is None
