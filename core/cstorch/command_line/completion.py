"""`cstorch completion`: the script with which a shell completes the command."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_WHERE = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/completions/cstorch.fish"}


@click.command()
@click.argument("shell", type=click.Choice(list(_WHERE)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Write the completion script for SHELL; for bash: cstorch completion bash >> ~/.bashrc."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "cstorch", "_CSTORCH_COMPLETE").source())
