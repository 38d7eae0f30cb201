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


def test_the_reference_beside_us_is_one_clear_error(tmp_path):
    info = tmp_path / "cerebras_pytorch-2.10.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cerebras_pytorch\nVersion: 2.10.0\n")
    code = f"import sys; sys.path.append({str(tmp_path)!r})\nimport cstorch\nimport cerebras.pytorch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "BackendError: cerebras-pytorch 2.10.0, the reference implementation, is installed beside" in done.stderr
    assert "pip uninstall cerebras-pytorch" in done.stderr


def test_backend_is_a_callable_and_a_module():
    code = """
import importlib
import cerebras.pytorch as cstorch
with cstorch.backend("CPU") as made:
    from cerebras.pytorch.backend import Backend
    import cerebras.pytorch.backend
    importlib.import_module("cerebras.pytorch.backend")
    assert isinstance(made, Backend)
    assert cstorch.backend() is made
    assert cerebras.pytorch.backend.backend() is made
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_another_tree_may_add_to_the_namespace(tmp_path):
    (tmp_path / "cerebras" / "modelzoo").mkdir(parents=True)
    (tmp_path / "cerebras" / "modelzoo" / "__init__.py").write_text("here = 1\n")
    code = f"import sys; sys.path.append({str(tmp_path)!r})\nimport cerebras.pytorch, cerebras.modelzoo"
    subprocess.run([sys.executable, "-c", code], check=True)
