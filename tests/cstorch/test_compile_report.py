"""The report of a traced step: what it says against an independent count, where it lies, and the memory limits."""

import json
import re
import warnings
from html.parser import HTMLParser

import cstorch
import pytest
import torch
import torch.nn.functional as F
from cstorch.backends import csx as flags
from cstorch.compiler.made import Made
from cstorch.errors import MemoryLimitError, ValueReadError
from cstorch.report.limits import check_compile
from cstorch.report.step import StepReport
from cstorch.utils.data import DataExecutor, DataLoader
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 4)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


def make(rows=(8,)):
    """A training step, and an executor's run of it over batches of so many rows."""
    net = Net()
    model = cstorch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    @cstorch.trace
    def training_step(x, y):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def run():
        loader = DataLoader(lambda: [(torch.ones(n, 16), torch.zeros(n, dtype=torch.int64)) for n in rows])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for x, y in DataExecutor(loader, num_steps=len(rows)):
                training_step(x, y)

    return net, run


def read(backend):
    folder = backend.artifact_dir / "compile" / "latest"
    return folder, json.loads((folder / "report.json").read_text())


def test_a_usual_run_leaves_a_report(csx):
    net, run = make(rows=(8, 8, 8))
    run()
    folder, found = read(csx)
    (program,) = found["programs"]
    assert program["step"] == "training_step"
    # two products forward, their weights' gradients, and the gradient of the hidden layer
    assert program["flops"] == 2 * (2 * 8 * 16 * 64 + 2 * 8 * 64 * 4) + 2 * 8 * 64 * 4
    parameters = sum(p.numel() * 4 for p in net.parameters())
    assert program["parameter_bytes"] == parameters
    assert program["state_bytes"] == 2 * parameters  # and momentum
    assert program["inputs"] == ["float32[8, 16]", "int64[8]"]
    assert program["input_bytes"] == 8 * 16 * 4 + 8 * 8
    assert (program["outputs"], program["output_bytes"]) == (1, 4)
    assert program["kinds"]["matrix products"]["operations"] == 5
    assert program["kinds"]["matrix products"]["flops"] == program["flops"]
    assert sum(kind["operations"] for kind in program["kinds"].values()) == sum(program["operations"].values())
    assert program["peak_bytes"] == program["state_bytes"] + program["input_bytes"] + program["activation_bytes"]
    assert program["why"] == "the first call"
    assert program["compiled"]["how"] == "interpreted"
    assert found["findings"] == found["refused"] == []
    graph = (folder / program["graph"]).read_text()
    assert "float32[64, 16] = up.weight" in graph
    assert "momentum_buffer of down.bias" in graph
    assert re.search(rf"# {re.escape(__file__)}:\d+  return self\.down\(F\.gelu\(self\.up\(x\)\)\)\n", graph)
    assert "traced for  the first call" in (folder / "report.txt").read_text()


class Page(HTMLParser):
    """Finds tags that are not closed, and what is loaded from elsewhere."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.external = [], "", []

    def handle_starttag(self, tag, attrs):
        self.external += [value for name, value in attrs if name in ("src", "href", "data", "action")]
        if tag not in ("meta", "br", "html"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag != "html":
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_stands_alone(csx):
    run = make(rows=(8, 6))[1]
    run()
    source = (read(csx)[0] / "report.html").read_text()
    page = Page()
    page.feed(source)
    assert page.open == page.external == []
    assert not re.search(r"https?:|url\(|@import|<script", source)
    for said in ("2 programs, 2 portability warnings", "training_step", "dynamic shapes", "Where it comes from"):
        assert said in page.text


def test_what_may_not_travel(csx):
    net, run = make(rows=(8, 6))
    run()
    for _ in DataExecutor(DataLoader(lambda: [torch.ones(1)]), num_steps=1):
        with pytest.warns(UserWarning, match="which is no checkpoint step"):
            net.up.weight.detach().cpu().sum()
    _, found = read(csx)
    assert [program["why"] for program in found["programs"]] == [
        "the first call",
        "a tensor of shape (6, 16) came where one of shape (8, 16) was traced",
    ]
    several, shapes, weights = found["findings"]
    assert several.startswith("the step 'training_step' becomes 2 programs; a system loads one")
    assert "dynamic shapes: it is given (float32[8, 16], int64[8]), (float32[6, 16], int64[6])" in shapes
    assert weights.startswith("weights are read at ")
    assert "no checkpoint step" in weights


def test_refused_reads_are_in_the_report(csx):
    @cstorch.trace
    def reads(x):
        return x.sum().item()

    @cstorch.trace
    def goes_on(x):
        try:
            scale = float(x.sum())
        except RuntimeError:
            scale = 2.0
        return x * scale

    with pytest.raises(ValueReadError):
        reads(torch.ones(2))
    goes_on(torch.ones(2))
    _, found = read(csx)
    refused, swallowed = found["refused"]
    assert refused.startswith("the step 'reads' was not traced: reading the value of a traced tensor at ")
    assert re.match(rf"the step 'goes_on', which went on: .* at {re.escape(__file__)}:\d+$", swallowed)


@pytest.mark.parametrize("mode", ["validate_only", "compile_only"])
def test_nothing_is_run_and_the_report_is_shown(mode, compile_cache, capsys):
    with cstorch.backend("CSX", compile_dir=compile_cache, **{mode: True}) as backend:
        with backend.device:
            net, run = make()
        run()
        assert all(parameter.is_pending for parameter in net.parameters())  # no memory was taken
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "training_step"
    assert shown.count("training_step") == 1
    assert f"  compiled    {'no' if mode == 'validate_only' else 'interpreted: CSTORCH_INTERPRET is set'}" in shown
    assert shown[-1] == f"report: {backend.report.folder / 'report.html'}"
    assert (backend.report.folder / "report.html").is_file()


def test_a_usual_run_shows_nothing(csx, capsys):
    make()[1]()
    assert capsys.readouterr() == ("", "")


def test_a_folder_that_cannot_be_written_does_not_end_the_run(compile_cache, tmp_path):
    (tmp_path / "taken").write_text("")
    seen = []
    with cstorch.backend("CSX", artifact_dir=tmp_path / "taken", compile_dir=compile_cache):
        step = cstorch.trace(lambda x: cstorch.step_closure(seen.append)(x * 2))
        step(torch.ones(1))
    assert seen[0].item() == 2


def test_the_estimate_of_memory(csx):
    """Against a count by hand: a and b are there together, then b and c; views and changes in place are free."""

    @cstorch.trace
    def step(x):
        a = x * 2
        b = a.view(-1) + 1
        c = b.mul_(3).exp()
        return c.sum()

    step(torch.ones(10, 100))
    report = StepReport.of(step.programs[0])
    assert report.activation_bytes == 8000
    assert max(report.activations.course) == 8000
    assert report.activations.course[0] == 4000


@pytest.mark.parametrize(
    ("flag", "estimate", "what"),
    [
        ("wgt_memory_gi", "state_bytes", "parameters, optimizer state"),
        ("act_memory_gi", "activation_bytes", "a smaller batch, or recompute activations"),
        ("execute_crd_memory_gi", "peak_bytes", "state, inputs, activations and gradients together"),
    ],
)
def test_a_program_above_a_limit_is_not_run(csx, monkeypatch, flag, estimate, what):
    net, run = make()
    before = net.up.weight.detach().cpu().clone()
    monkeypatch.setitem(flags.debug.__dict__, flag, 1e-6)
    with pytest.raises(MemoryLimitError, match=rf"(?s)'training_step' takes an estimated .* for .*{flag} = 1e-06") as e:
        run()
    assert what in str(e.value)
    assert torch.equal(net.up.weight.detach().cpu(), before)
    _, found = read(csx)  # it says where the memory goes
    enough = found["programs"][0][estimate] / 2**30
    monkeypatch.setitem(flags.debug.__dict__, flag, enough)
    run()
    assert not torch.equal(net.up.weight.detach().cpu(), before)


def test_the_limit_of_the_compile(monkeypatch):
    monkeypatch.setitem(flags.debug.__dict__, "compile_crd_memory_gi", 2)
    check_compile("step", Made("compiled", peak_bytes=2 << 30))
    with pytest.raises(MemoryLimitError, match=r"compiling the step 'step' took 3\.0 GiB, and .*_gi = 2 allows 2\.0"):
        check_compile("step", Made("compiled", peak_bytes=3 << 30))


def test_limits_are_checked_when_they_are_set():
    for name in ("act", "wgt", "cmd", "execute_crd", "compile_crd"):
        with pytest.raises(ValueError, match=rf"csx\.debug\.{name}_memory_gi was set to 0, expected None or a number"):
            setattr(flags.debug, f"{name}_memory_gi", 0)
