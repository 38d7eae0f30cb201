"""Importing cstorch: quick, without Lightning, without TensorBoard, without the compiler."""

import subprocess
import sys


def run(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_nothing_heavy_is_imported():
    loaded = run("import cstorch, sys; print(*sys.modules)").split()
    for name in (
        "lightning",
        "pytorch_lightning",
        "tensorboard",
        "torch._inductor",
        "torch._dynamo",
        "sympy",
        "h5py",
    ):
        assert name not in loaded or name in run("import torch, sys; print(*sys.modules)").split(), name


def test_the_device_is_registered_by_the_import_and_not_by_torch():
    assert run("import torch; print(hasattr(torch, 'csx'))").strip() == "False"
    assert run("import torch, cstorch; print(torch.device('csx'))").strip() == "csx"


def test_public_names():
    import cstorch

    for name in cstorch.__all__:
        assert getattr(cstorch, name) is not None
        if callable(getattr(cstorch, name)):
            assert getattr(cstorch, name).__doc__
