"""`cstorch cache`: what the compile cache holds, and how to make room."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import click

from cstorch.command_line.output import as_json, write_json
from cstorch.compiler import cache as compile_cache
from cstorch.sizes import size_text

_folder = click.option(
    "--compile-dir", type=click.Path(file_okay=False, path_type=Path), help="The folder; by default the usual one."
)


@click.group()
def cache() -> None:
    """List compiled programs, or remove them."""


@cache.command("list")
@_folder
@as_json
def list_(compile_dir: Path | None, json_: bool) -> None:
    """List the compiled programs, those first that were not used for longest."""
    folder = _existing(compile_dir)
    entries = compile_cache.entries(folder)
    if json_:
        programs = [
            {
                "key": entry.key,
                "step": entry.step,
                "bytes": entry.size,
                "compiled": entry.time,
                "used": entry.used,
            }
            for entry in entries
        ]
        write_json({"folder": str(folder), "programs": programs})
        return
    for entry in entries:
        when = datetime.fromtimestamp(entry.time).isoformat(" ", "seconds")
        click.echo(f"{entry.key}  {when}  {size_text(entry.size):>10}  {entry.step}".rstrip())
    click.echo(f"{len(entries)} programs, {size_text(sum(entry.size for entry in entries))} in {folder}")


@cache.command()
@click.option("--older-than", type=click.FloatRange(min=0), metavar="DAYS", help="Only those compiled before that.")
@_folder
def clear(compile_dir: Path | None, older_than: float | None) -> None:
    """Remove compiled programs. Runs that have loaded them go on; the next ones compile them again."""
    folder = _existing(compile_dir)
    before = None if older_than is None else time.time() - older_than * 86400
    chosen = [entry for entry in compile_cache.entries(folder) if before is None or entry.time < before]
    for entry in chosen:
        entry.remove()
    click.echo(f"removed {len(chosen)} programs, {size_text(sum(entry.size for entry in chosen))}, from {folder}")


def _existing(folder: Path | None) -> Path:
    if folder is not None and not folder.is_dir():
        raise click.BadParameter(f"there is no folder {folder}")
    return compile_cache.cache_folder(folder)
