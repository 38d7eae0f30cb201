"""An error inside backward is an ordinary exception, in processes of their own since it used to end the process."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, torch, cstorch
from torch.utils.checkpoint import checkpoint
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts jobs in the background ignores it
if {backend}:
    backend = cstorch.backend("CSX", compile_dir={cache!r})
model = torch.nn.Linear(2, 2)
broken = True

class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        if broken:
            raise KeyError("mine")  # USER
        return grad * 2

class Interrupted(Raises):
    @staticmethod
    def backward(ctx, grad):
        if broken:
            os.kill(os.getpid(), signal.SIGINT)
            sum(range(1000))
        return grad * 2

def fails(*args):
    if broken:
        raise KeyError("mine")  # USER

def interrupts(*args):
    if broken:
        raise KeyboardInterrupt("mine")  # USER

def reads(grad):
    if broken:
        grad.sum().item()  # USER

def nonzero(grad):
    if broken:
        torch.nonzero(grad)  # USER

calls = []
def part(x):
    calls.append(1)
    if len(calls) % 2 == 0 and broken:
        raise KeyError("mine")  # USER
    return model(x)

user = {{i for i, text in enumerate(SOURCE.split(chr(10)), 1) if "# USER" in text}}
traced = {traced}
for name, line in {cases!r}.items():
    broken = True
    calls.clear()
    model = torch.nn.Linear(2, 2).to("csx")
    scope = dict(globals())
    body = f"def step(x):\\n    y = model(x)\\n    {{line}}\\n    y.sum().backward()"
    exec(compile(body, "step.py", "exec"), globals())
    step = cstorch.trace(step) if traced else step
    x = torch.ones(1, 2).to("cpu" if traced else "csx")
    try:
        with torch.autograd.set_multithreading_enabled(False):
            step(x)
    except BaseException as error:
        lines, trace = set(), error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "user.py":
                lines.add(trace.tb_lineno)
            trace = trace.tb_next
        print(f"{{name}}: {{type(error).__name__}}", "at the line" if user & lines else "elsewhere", str(error)[:200])
    else:
        print(f"{{name}}: no error")
    broken = False
    calls.clear()
    model.zero_grad()
    with torch.autograd.set_multithreading_enabled(False):
        step(x)
    print(f"{{name}}: then", model.weight.grad is not None)
(torch.ones(2, requires_grad=True) * 2).sum().backward()
"""

CASES = {
    "tensor hook": ("y.register_hook(fails)", "KeyError at the line 'mine'"),
    "value read": ("y.register_hook(reads)", "ValueReadError at the line"),
    "value printed": ("y.register_hook(lambda g: print(g) if broken else None)", "ValueReadError"),
    "refused operator": ("y.register_hook(nonzero)", "TraceError at the line"),
    "function": ("y = Raises.apply(y)", "KeyError at the line 'mine'"),
    "parameter hook": ("model.weight.register_hook(fails) if broken else None", "KeyError at the line 'mine'"),
    "node hook": ("y.grad_fn.register_hook(fails)", "KeyError at the line 'mine'"),
    "node pre-hook": ("y.grad_fn.register_prehook(fails)", "KeyError at the line 'mine'"),
    "post-accumulate hook": (
        "h = model.weight.register_post_accumulate_grad_hook(fails) if broken else None",
        "KeyError at the line 'mine'",
    ),
    "module hook": ("h = model.register_full_backward_hook(fails); y = model(x.requires_grad_())", "KeyError"),
    "checkpoint": ("y = checkpoint(part, x.requires_grad_(), use_reentrant=False)", "KeyError at the line 'mine'"),
    "reentrant checkpoint": ("y = checkpoint(part, x.requires_grad_(), use_reentrant=True)", "KeyError at the line"),
    "interrupt in a hook": ("y.register_hook(interrupts)", "KeyboardInterrupt at the line mine"),
    "interrupt": ("y = Interrupted.apply(y)", "KeyboardInterrupt"),
}
EAGER = ("tensor hook", "function", "node hook", "checkpoint", "reentrant checkpoint", "interrupt")


def run(cache, cases, traced=True, backend=True, **environment):
    """The lines that a process with all `cases` prints."""
    lines = {name: CASES[name][0] for name in cases}
    source = PROGRAM.format(cache=str(cache), cases=lines, backend=backend, traced=traced)
    command = [sys.executable, "-c", f"SOURCE = {source!r}\nexec(compile(SOURCE, 'user.py', 'exec'))"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment}, check=False
    )
    assert "terminate called" not in done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(out, cases):
    for name in cases:
        assert f"{name}: {CASES[name][1]}" in out
        assert f"{name}: then True" in out


@pytest.mark.parametrize("compiler", ["g++", "no-such-compiler"])
def test_in_a_traced_step(compiler, compile_cache, tmp_path):
    cache = compile_cache if compiler == "g++" else tmp_path
    check(run(cache, CASES, CXX=compiler), CASES)


@pytest.mark.parametrize("backend", [True, False])
def test_outside_of_traces(backend, compile_cache):
    check(run(compile_cache, EAGER, traced=False, backend=backend), EAGER)


def test_uncaught_it_ends_the_process_as_python_does(tmp_path):
    program = (
        "import torch, cstorch\nx = torch.ones(2, device='csx', requires_grad=True)\ny = x * 2\n"
        "y.register_hook(lambda g: 1 / 0)\ny.sum().backward()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_without_a_compiler_the_native_guard_is_left_out(monkeypatch, tmp_path):
    from cstorch.device import native_guard

    monkeypatch.setattr(native_guard, "_installed", False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert native_guard.install(tmp_path) is False


def test_where_nothing_helps_it_is_said(monkeypatch, tmp_path, caplog):
    from cstorch.device import native_guard

    monkeypatch.setattr(native_guard, "_installed", False)
    monkeypatch.setattr(native_guard, "let_errors_pass", lambda: False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert native_guard.install(tmp_path) is False
    assert "Install a C++ compiler" in caplog.text
