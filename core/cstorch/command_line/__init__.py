"""The command `cstorch`."""

from __future__ import annotations

import click

import cstorch
from cstorch.command_line.benchmark import benchmark
from cstorch.command_line.checkpoint import checkpoint
from cstorch.command_line.compile_cache import cache
from cstorch.command_line.completion import completion
from cstorch.command_line.info import info
from cstorch.command_line.system import system
from cstorch.command_line.validate import validate

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(cstorch.__version__, prog_name="cstorch")
def main() -> None:
    """PyTorch training steps traced once, compiled whole and replayed."""


for _command in (benchmark, cache, checkpoint, completion, info, system, validate):
    main.add_command(_command)
