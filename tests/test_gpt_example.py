"""The GPT programs of examples/gpt, with tiny settings: they train, save, go on where they were, and keep the rules."""

import re
import subprocess
import sys
from pathlib import Path

GPT = Path(__file__).parent.parent / "examples" / "gpt"
TINY = "--steps 4 --eval_every 2 --eval_batches 2 --batch_size 2 --sequence_length 16 --width 16 --depth 1 --heads 2"


def run(folder, *arguments):
    done = subprocess.run(
        [sys.executable, *map(str, arguments), *TINY.split(), "--dropout", "0"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def last_loss(output):
    return float(re.findall(r"step 4: evaluation loss ([\d.]+) nats", output)[-1])


def test_a_run_that_is_resumed_ends_where_the_whole_one_does(tmp_path):
    whole = last_loss(run(tmp_path, GPT / "train.py", "--out", "whole"))
    assert list((tmp_path / "whole" / "logs").glob("events.out.*"))
    resumed = run(tmp_path, GPT / "train.py", "--out", "rest", "--resume", "whole/checkpoint_2.mdl")
    assert "step 2: evaluation" not in resumed
    assert last_loss(resumed) == whole
    assert (tmp_path / "rest" / "checkpoint_4.mdl").exists()


def test_the_same_through_lightning(tmp_path):
    assert 5 < last_loss(run(tmp_path, GPT / "train_lightning.py", "--out", "light")) < 6
    assert (tmp_path / "light" / "checkpoints" / "last.ckpt").exists()
    assert list((tmp_path / "light" / "logs").rglob("events.out.*"))


def test_it_keeps_the_rules_of_the_real_system(tmp_path):
    silenced = ["--silence", "torch-optimizer", "--silence", "torch-scheduler"]
    command = ["-c", "from cstorch.command_line import main; main()", "validate", "--strict", *silenced]
    assert "It can be traced" in run(tmp_path, *command, GPT / "train.py")
