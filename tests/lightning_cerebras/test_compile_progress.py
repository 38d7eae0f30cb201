"""CompileProgress writes a line for each program, whatever else looks at the parts of the run."""

import io
import re

import lightning as L
import pytest
from modules import Linear

import lightning_cerebras

LINE = r"csx: program {}: tracing \d+\.\d s, compiling \d+\.\d s"


def run(accelerator, tmp_path, **options):
    stream = io.StringIO()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(
        accelerator=accelerator,
        devices=1,
        max_epochs=2,
        default_root_dir=tmp_path,
        callbacks=[lightning_cerebras.CompileProgress(stream)],
        enable_model_summary=False,
        **quiet,
        **options,
    )
    trainer.fit(Linear())
    trainer.fit_loop.max_epochs = 4
    trainer.fit(Linear())
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("profiler", [None, "simple"])
def test_a_line_for_each_program(tmp_path, profiler):
    lines = run("csx", tmp_path, profiler=profiler)
    assert len(lines) == 2
    for number, line in enumerate(lines):
        assert re.fullmatch(LINE.format(number + 1), line)


def test_silent_on_the_cpu(tmp_path):
    assert run("cpu", tmp_path) == []


class Fails(Linear):
    def training_step(self, batch, batch_idx):
        raise KeyError("no")


def test_a_failed_trace_ends_its_line(tmp_path):
    stream = io.StringIO()
    callback = lightning_cerebras.CompileProgress(stream)
    trainer = L.Trainer(accelerator="csx", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                        callbacks=[callback], max_epochs=1, default_root_dir=tmp_path)  # fmt: skip
    with pytest.raises(KeyError):
        trainer.fit(Fails())
    assert stream.getvalue() == "csx: program 1: tracing failed\n"
