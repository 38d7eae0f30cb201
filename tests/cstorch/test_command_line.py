"""The command `cstorch`."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import cstorch
import h5py
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from cstorch.command_line import main
from cstorch.errors import CheckpointContentError, CheckpointError

FIXTURES = Path(__file__).parent / "fixtures"


def run(*arguments, status=0):
    result = CliRunner().invoke(main, ["checkpoint", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture
def state():
    w = torch.randn(300, 200)
    return {"model": {"w": w, "tied": w, "b": torch.ones(3).bfloat16()}, "lr": [0.1, None], "a": np.arange(3)}


def test_show(tmp_path, state):
    cstorch.save(state, tmp_path / "a.ckpt")
    lines = run("show", tmp_path / "a.ckpt").splitlines()
    assert lines[0] == "model.w  float32 [300, 200]  234.4 KiB"
    assert "lr.0  0.1" in lines
    assert lines[-1].startswith("4 tensors, 468.8 KiB")
    assert "table" in run("show", FIXTURES / "reference_v0_5.mdl")
    assert "no.ckpt does not exist" in run("show", tmp_path / "no.ckpt", status=1)


def test_verify(tmp_path, state):
    cstorch.save(state, tmp_path / "a.ckpt")
    assert "is as it was written" in run("verify", tmp_path / "a.ckpt")
    data = bytearray((tmp_path / "a.ckpt").read_bytes())
    data[data.index(state["model"]["w"].numpy().tobytes()[:64])] ^= 1
    (tmp_path / "a.ckpt").write_bytes(data)
    assert "the tensor 'model.w' was damaged" in run("verify", tmp_path / "a.ckpt", status=1)


def test_diff(tmp_path, state):
    cstorch.save(state, tmp_path / "a.ckpt")
    torch.save(state, tmp_path / "b.ckpt")
    del state["a"]
    cstorch.save(state, tmp_path / "c.ckpt")
    state["model"]["b"][1] = 3
    state["lr"][1] = 5
    cstorch.save({**state, "new": 1}, tmp_path / "d.ckpt")
    assert run("diff", tmp_path / "a.ckpt", tmp_path / "a.ckpt") == "no difference\n"
    text = run("diff", tmp_path / "c.ckpt", tmp_path / "d.ckpt", status=1)
    assert text == "+ new\n! model.b  1 of 3 elements differ, by up to 2\n! lr.1  None became 5\n"


@pytest.mark.parametrize("kind", ["cstorch", "torch", "reference"])
def test_convert_and_back(tmp_path, state, kind):
    if kind == "torch":
        del state["a"]
    cstorch.save(state, tmp_path / "a.ckpt")
    run("convert", tmp_path / "a.ckpt", tmp_path / "b.ckpt", "--to", kind)
    assert run("diff", tmp_path / "a.ckpt", tmp_path / "b.ckpt") == "no difference\n"
    found = cstorch.load(tmp_path / "b.ckpt", "cpu")
    assert found["model"]["tied"].data_ptr() == found["model"]["w"].data_ptr()


def test_the_reference_layout_is_that_of_the_reference(tmp_path):
    run("convert", FIXTURES / "reference_v0_5.mdl", tmp_path / "a.mdl", "--to", "reference")
    with h5py.File(FIXTURES / "reference_v0_5.mdl") as want, h5py.File(tmp_path / "a.mdl") as found:
        assert dict(want.attrs) == dict(found.attrs)
        assert list(want) == list(found)
        for name in want:
            assert want[name].dtype == found[name].dtype
            np.testing.assert_array_equal(want[name][()], found[name][()])
            assert list(want[name].attrs) == list(found[name].attrs)
            for key in want[name].attrs:
                np.testing.assert_array_equal(want[name].attrs[key], found[name].attrs[key])
                assert want[name].attrs.get_id(key).dtype == found[name].attrs.get_id(key).dtype


def test_convert_to_safetensors(tmp_path, state):
    safetensors = pytest.importorskip("safetensors.torch")
    cstorch.save(state, tmp_path / "a.ckpt")
    assert "lr.0" in run("convert", tmp_path / "a.ckpt", tmp_path / "a.safetensors", "--to", "safetensors")
    found = safetensors.load_file(tmp_path / "a.safetensors")
    assert torch.equal(found["model.w"], state["model"]["w"])
    assert torch.equal(found["model.b"], state["model"]["b"])
    safetensors.save_file({k: v.clone() for k, v in found.items()}, tmp_path / "b.safetensors")
    for location in (None, "cache", "cpu"):
        again = cstorch.load(tmp_path / "b.safetensors", location)
        assert torch.equal(again["model.w"], state["model"]["w"])
    whole = (tmp_path / "b.safetensors").read_bytes()
    (tmp_path / "b.safetensors").write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="damaged safetensors"):
        cstorch.load(tmp_path / "b.safetensors")


def test_what_the_reference_has_no_form_for_is_named(tmp_path):
    from cstorch.storage.reference_writer import write_reference

    for value, what in (
        (b"x", "of type bytes"),
        (torch.ones(1).to(torch.float8_e5m2), "a tensor of torch.float8_e5m2"),
    ):
        with pytest.raises(CheckpointContentError, match=f"'a.0' is {what}"):
            write_reference({"a": [value]}, tmp_path / "a.mdl")


# -- the other commands --------------------------------------------------------------------------------------

PROGRAM = """
import sys
import cstorch
import torch

def input_fn():
    return [(torch.ones(4, 3), torch.ones(4, 2)) for _ in range(5)]

def make(dtype=torch.float32):
    model = torch.nn.Linear(3, 2).to(dtype)
    backend = cstorch.backend("CSX")
    compiled = cstorch.compile(model, backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @cstorch.trace
    def training_step(batch):
        loss = (compiled(batch[0].to(dtype)) - batch[1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss
    return training_step

@cstorch.step_closure
def show(loss):
    print("the loss is", loss.item())

def main():
    print("arguments", sys.argv[1:])
    step = make()
    for batch in cstorch.utils.data.DataExecutor(cstorch.utils.data.DataLoader(input_fn), num_steps=5):
        show(step(batch))
"""


@pytest.fixture
def cstorch_command(tmp_path, monkeypatch):
    """Calls a command in a folder, with a backend of its own."""
    modules = set(sys.modules)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(tmp_path)

    def call(*arguments, status=0):
        result = CliRunner().invoke(main, [*map(str, arguments)])
        if cstorch.current_backend(False, False) is not None:
            cstorch.backend().close()
        assert result.exit_code == status, result.output
        return result

    yield call
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def script(name, more=""):
    Path(name).write_text(PROGRAM + more)


def test_a_script_is_validated(cstorch_command):
    script("program.py", "main()\n")
    result = cstorch_command("validate", "program.py", "--steps", "3")
    lines = result.stdout.splitlines()
    assert lines[0] == "arguments ['--steps', '3']"
    assert lines[1] == "It can be traced, and nothing was found that another system would not take."
    assert "the loss is" not in result.output
    assert lines[3] == "training_step"
    assert lines[4].startswith("  operations  ")
    # addmm forward and mm backward, 2 * 4 * 3 * 2 each
    assert "  FLOPs       96 a step" in lines[5]
    assert "  state       4 tensors, 64 B" in lines
    assert "  inputs      float32[4, 3], float32[4, 2]" in lines
    assert "  outputs     1" in lines
    found = json.loads(cstorch_command("validate", "--json", "program.py").stdout)
    assert found["findings"] == []
    assert found["error"] is None
    assert found["steps"][0]["operations"]["mm"] >= 1


def test_a_step_is_validated_with_a_batch(cstorch_command):
    script("parts.py", "step = make()\n")
    result = cstorch_command("validate", "--input-fn", "parts:input_fn", "parts:step")
    assert "It can be traced" in result.stdout
    assert "It can be traced" in cstorch_command("validate", "parts:main").stdout
    assert "It can be traced" in cstorch_command("validate", "parts.py:main").stdout


def test_what_validation_finds(cstorch_command):
    script(
        "odd.py",
        """
import warnings
step = make(torch.float64)
def twice():
    for rows in (2, 3):
        step((torch.ones(rows, 3), torch.ones(rows, 2)))
    warnings.warn("mind the gap")
@cstorch.trace
def silent(x):
    x * 2
def nothing():
    cstorch.backend("CSX")
    silent(torch.ones(2))
""",
    )
    found = json.loads(cstorch_command("validate", "--json", "odd:twice").stdout)["findings"]
    assert found[0].startswith("the step 'training_step' becomes 2 programs; a system loads one")
    assert "the step 'training_step' computes in float64, which no system has. Make its tensors float32." in found
    assert any("mind the gap" in finding and "odd.py" in finding for finding in found)
    cstorch_command("validate", "--strict", "odd:twice", status=1)
    text = cstorch_command("validate", "odd:nothing").stdout
    assert text.startswith("It can be traced; 1 finding to look at.\n  - the step 'silent' returns no tensor")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "step = cstorch.trace(lambda x: x.sum().item())\nmake()\nstep(torch.ones(2))",
            "trying to materialize a tensor",
        ),
        ("raise LookupError('gone')", "The program raised an error. LookupError: gone ("),
        ("main()\n1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(4)", "the program ended with status 4."),
        ("", "No step was traced. Decorate the step with @cstorch.trace"),
    ],
    ids=["read", "error", "later", "exit", "nothing"],
)
def test_programs_that_cannot_be_validated(cstorch_command, body, message):
    script("bad.py", body)
    output = cstorch_command("validate", "bad.py", status=1).output
    assert message in output
    assert ("leave out what needs them" in output) is ("1 / 0" in body)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.py", "there is no file nowhere.py"),
        ("step", "is not of the form module:name"),
        ("nowhere:step", "No module named 'nowhere'"),
        ("there:step", "has no attribute 'step'"),
        ("nowhere.py:step", "there is no file nowhere.py"),
        ("there:number", "is a int, not a function"),
        ("json.py:dumps", "hides json.py; rename the file"),
    ],
)
def test_names_that_name_nothing(cstorch_command, target, message):
    Path("there.py").write_text("number = 3\n")
    Path("json.py").write_text("")
    assert message in " ".join(cstorch_command("validate", target, status=2).output.split())
    if not target.endswith("where.py"):
        assert message in " ".join(cstorch_command("benchmark-dataloader", target, status=2).output.split())


def test_validation_is_over_after_the_command(cstorch_command):
    script("program.py", "main()\n")
    cstorch_command("validate", "program.py")
    with cstorch.backend("CSX") as backend:
        assert backend.is_e2e_execution


def test_a_lightning_script_is_validated(cstorch_command):
    Path("light.py").write_text(
        """
import lightning as L, torch
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
    def training_step(self, batch, batch_idx):
        return self.layer(batch).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
trainer = L.Trainer(accelerator="csx", max_epochs=1, logger=False, enable_progress_bar=False,
                    enable_model_summary=False, enable_checkpointing=False)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(8, 3), batch_size=4))
"""
    )
    result = cstorch_command("validate", "light.py")
    assert "It can be traced, and nothing was found" in result.output  # whatever Lightning warns of
    assert "  inputs      float32[4, 3]" in result.output


def test_a_dataloader_is_benchmarked(cstorch_command):
    script("program.py")
    text = cstorch_command("benchmark-dataloader", "program:input_fn", "--epochs", 2, "--activity", "memory").stdout
    assert "samples/s over 10 steps" in text.splitlines()[0]
    assert "memory.process_mib" in text
    result = cstorch_command("benchmark-dataloader", "program:input_fn", "--steps", 3, "--json", "--html", "page.html")
    assert json.loads(result.stdout)["total_steps"] == 3
    assert "<svg" in Path("page.html").read_text()
    refused = cstorch_command("benchmark-dataloader", "program:input_fn", "--activity", "disk", status=2)
    assert "no profiler activity 'disk'" in refused.output
    script("empty.py", "none = list\ndef stops():\n    yield 1\n    raise KeyboardInterrupt\n")
    assert "gave no batch" in cstorch_command("benchmark-dataloader", "empty:none", status=1).output
    assert "Interrupted" in cstorch_command("benchmark-dataloader", "empty:stops", status=130).output


def test_info(cstorch_command, tmp_path, monkeypatch):
    monkeypatch.setenv("CSTORCH_INTERPRET", "1")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: SimpleNamespace(stdout="True\n", returncode=0, stderr=""))
    found = json.loads(cstorch_command("info", "--json").stdout)
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["cstorch"] == cstorch.__version__
    assert found["machine"]["instructions"] == torch.backends.cpu.get_cpu_capability()
    assert found["lightning"] == {'accelerator="csx"': "known"}
    assert found["environment"]["CSTORCH_INTERPRET"] == "1"
    lines = cstorch_command("info").stdout.splitlines()
    assert lines[0] == "versions"
    assert f"  torch              {torch.__version__}" in lines
    assert all(line.isprintable() for line in lines)


def test_the_compile_cache(cstorch_command, tmp_path):
    for age, name in ((5, "0" * 32), (1, "f" * 32)):
        folder = tmp_path / "cache" / name
        folder.mkdir(parents=True)
        (folder / "library.so").write_bytes(b"x" * 1024)
        then = time.time() - age * 86400
        os.utime(folder / "library.so", (then, then))
    (tmp_path / "cache" / "other").mkdir()
    where = ("--compile-dir", tmp_path / "cache")
    lines = cstorch_command("cache", "list", *where).stdout.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["0" * 32, "f" * 32]
    assert lines[2] == f"2 programs, 2.0 KiB in {tmp_path / 'cache'}"
    found = json.loads(cstorch_command("cache", "list", "--json", *where).stdout)
    assert [program["bytes"] for program in found["programs"]] == [1024, 1024]
    assert "removed 1 programs" in cstorch_command("cache", "clear", "--older-than", 3, *where).stdout
    assert [path.name for path in sorted((tmp_path / "cache").iterdir())] == ["f" * 32, "other"]
    assert "removed 1 programs, 1.0 KiB" in cstorch_command("cache", "clear", *where).stdout
    assert "there is no folder" in cstorch_command("cache", "list", "--compile-dir", "no", status=2).output


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_shell_completion(cstorch_command, shell):
    assert "_CSTORCH_COMPLETE" in cstorch_command("completion", shell).stdout
    environment = {"COMP_WORDS": "cstorch b", "COMP_CWORD": "b" if shell == "fish" else "1"}
    result = CliRunner().invoke(
        main, env={"_CSTORCH_COMPLETE": f"{shell}_complete", **environment}, prog_name="cstorch"
    )
    assert "benchmark-dataloader" in result.output


def test_json_of_checkpoints(cstorch_command, state):
    cstorch.save(state, "a.ckpt")
    shown = json.loads(cstorch_command("checkpoint", "show", "--json", "a.ckpt").stdout)
    assert shown["model.w"] == {"dtype": "float32", "shape": [300, 200]}
    assert shown["lr.0"] == 0.1
    assert json.loads(cstorch_command("checkpoint", "verify", "--json", "a.ckpt").stdout)["tensors"] > 0
    assert json.loads(cstorch_command("checkpoint", "diff", "--json", "a.ckpt", "a.ckpt").stdout) == {"differences": []}
