"""The settings of both programs, each an option on the command line; the defaults run in two minutes on 2 cores."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """Settings. A `resume` path goes on from a checkpoint, up to `steps` in all."""

    backend: str = "CSX"
    out: str = "gpt_run"
    resume: str = ""
    steps: int = 240
    eval_every: int = 80
    eval_batches: int = 10
    batch_size: int = 16
    sequence_length: int = 128
    width: int = 128
    depth: int = 4
    heads: int = 4
    dropout: float = 0.1
    learning_rate: float = 2e-3
    warmup_steps: int = 30
    weight_decay: float = 0.1
    max_gradient_norm: float = 1.0
    seed: int = 1


def parse_config(description: str | None) -> Config:
    """The settings of the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for field in dataclasses.fields(Config):
        kind = {"str": str, "int": int, "float": float}[str(field.type)]
        parser.add_argument(f"--{field.name}", type=kind, default=field.default, help=field.name.replace("_", " "))
    return Config(**vars(parser.parse_args()))
