"""The GPT programs of examples/gpt, with tiny settings: they train, save, go on where they were, and keep the rules."""

import logging
import re
import runpy
import sys
from pathlib import Path

import cstorch
import pytest
from click.testing import CliRunner
from cstorch.command_line import main

GPT = Path(__file__).parent.parent / "examples" / "gpt"
TINY = "--steps 4 --eval_every 2 --eval_batches 2 --batch_size 2 --sequence_length 16 --width 16 --depth 1 --heads 2"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a program as python would, and returns what it prints."""
    monkeypatch.syspath_prepend(GPT)
    for variable in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):  # seed_everything sets them: put back afterwards
        monkeypatch.setenv(variable, "0")
    level = logging.getLogger("cstorch").level

    def call(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *TINY.split(), "--dropout", "0", *arguments])
        try:
            runpy.run_path(str(GPT / name), run_name="__main__")
        finally:
            if cstorch.current_backend(False, False) is not None:
                cstorch.backend().close()
        return capsys.readouterr().out

    yield call
    logging.getLogger("cstorch").setLevel(level)
    for module in ("configuration", "data", "model", "optimization"):
        sys.modules.pop(module, None)


def last_loss(output, step=4):
    return float(re.findall(rf"step {step}: evaluation loss ([\d.]+) nats", output)[-1])


def test_a_run_that_is_resumed_ends_where_the_whole_one_does(run, tmp_path):
    whole = last_loss(run("train.py", "--out", "whole"))
    assert list((tmp_path / "whole" / "logs").glob("events.out.*"))
    resumed = run("train.py", "--out", "rest", "--resume", "whole/checkpoint_2.mdl")
    assert "step 2: evaluation" not in resumed
    assert last_loss(resumed) == whole
    assert (tmp_path / "rest" / "checkpoint_4.mdl").exists()


def test_the_same_through_lightning(run, tmp_path):
    assert 5 < last_loss(run("train_lightning.py", "--out", "light")) < 6
    assert (tmp_path / "light" / "checkpoints" / "last.ckpt").exists()
    assert list((tmp_path / "light" / "logs").rglob("events.out.*"))
    rest = run("train_lightning.py", "--out", "rest", "--resume", "light/checkpoints/last.ckpt", "--steps", "5")
    assert 5 < last_loss(rest, 5) < 6


def test_it_keeps_the_rules_of_the_real_system(run):
    result = CliRunner().invoke(main, ["validate", "--strict", str(GPT / "train.py"), *TINY.split()])
    assert result.exit_code == 0, result.output
    assert "It can be traced" in result.output
