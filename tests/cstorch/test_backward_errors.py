"""An error inside backward is an ordinary exception, in a process of its own since it used to end the process."""

import subprocess
import sys

import pytest

PROGRAM = """
import torch, cstorch
backend = cstorch.backend("CSX", compile_dir={cache!r})
model = torch.nn.Linear(2, 2)
compiled = cstorch.compile(model)

class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        raise KeyError("mine")

@cstorch.trace
def step(x):
    y = compiled(x)
    {line}
    y.sum().backward()

try:
    step(torch.ones(1, 2))
except Exception as error:
    print("caught", type(error).__name__, error)
else:
    print("no error")
(torch.ones(2, requires_grad=True) * 2).sum().backward()
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("y.register_hook(lambda g: 1 / 0)", "caught ZeroDivisionError"),
        ("y.register_hook(lambda g: print(g))", "caught ValueReadError printing a traced tensor at <string>"),
        ("y.register_hook(lambda g: g.item())", "caught"),
        ("y = Raises.apply(y)", "caught KeyError 'mine'"),
        ("model.weight.register_hook(lambda g: {}['x'])", "caught KeyError 'x'"),
    ],
)
def test_it_is_an_exception(line, expected, compile_cache):
    program = PROGRAM.format(cache=str(compile_cache), line=line)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert expected.split(" at <")[0] in done.stdout


def test_without_a_compiler_the_guard_is_left_out(monkeypatch, tmp_path):
    from cstorch.device import native_guard

    monkeypatch.setattr(native_guard, "_installed", False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert native_guard.install(tmp_path) is False
