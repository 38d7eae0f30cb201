"""The examples and the programs in README run, in processes of their own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(arguments, cwd, **environment):
    done = subprocess.run([sys.executable, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.native
def test_digits_reaches_its_accuracy(tmp_path):
    output = run([ROOT / "examples" / "digits.py"], tmp_path)
    assert float(re.search(r"best validation accuracy ([\d.]+)", output)[1]) > 0.95
    assert "tracing 'training_step'" in output
    assert re.search(r"(compiled|loaded) training_step", output)
    assert "steps/s" in output
    assert list((tmp_path / "digits_run" / "checkpoints").glob("*.ckpt"))
    assert list((tmp_path / "digits_run" / "logs").rglob("events.out.*"))


@pytest.mark.native
def test_digits_cstorch_reaches_its_accuracy(tmp_path):
    output = run([ROOT / "examples" / "digits_cstorch.py"], tmp_path)
    assert float(re.search(r"validation accuracy ([\d.]+)", output)[1]) > 0.95
    assert (tmp_path / "digits_cstorch_run" / "checkpoint_230.mdl").exists()


def readme_programs():
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_readme_has_a_program_for_each_way_in():
    lightning, cstorch = readme_programs()
    assert 'accelerator="csx"' in lightning
    assert "@cstorch.trace" in cstorch


@pytest.mark.parametrize("index", [0, 1])
def test_readme_programs_run(tmp_path, index):
    (tmp_path / "program.py").write_text(readme_programs()[index])
    output = run(["program.py"], tmp_path)
    assert ("max_epochs=3" in output) if index == 0 else ("step 20: loss" in output)


def test_the_cluster_page_says_what_its_script_computes():
    folder = ROOT / "examples" / "cluster"
    assert run([folder / "scaling.py"], folder).strip() in (folder / "README.md").read_text()
    assert subprocess.run(["bash", "-n", str(folder / "slurm.sh")], check=False).returncode == 0


def test_readme_test_command_is_what_ci_runs():
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    (command,) = [line for line in ci.splitlines() if line.startswith("pytest ")]
    assert f'pip install -e ".[dev]" && {command}\n' in readme
    assert 'pip install --quiet -e ".[dev]"\n' in ci
