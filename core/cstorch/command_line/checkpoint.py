"""`cstorch checkpoint`: looks at checkpoints, checks, compares and converts them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import click
import numpy as np
import torch

import cstorch
from cstorch.command_line.output import as_json, write_json
from cstorch.errors import CheckpointContentError, CheckpointError
from cstorch.sizes import size_text
from cstorch.storage.load import opened_checkpoint
from cstorch.storage.reference_writer import write_reference
from cstorch.storage.safetensors import write_safetensors
from cstorch.storage.tree_decoder import Decoder


class _Refusing(click.Group):
    """Says what is wrong with a checkpoint without a traceback."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except (CheckpointError, CheckpointContentError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Refusing)
def checkpoint() -> None:
    """Look at checkpoint files, check, compare and convert them."""


@checkpoint.command()
@click.argument("file", type=click.Path())
@as_json
def show(file: str, json_: bool) -> None:
    """List what FILE holds: names, shapes, dtypes, sizes and values."""
    leaves = _leaves(_described(file))
    if json_:
        write_json({name: _summary(value) for name, value in leaves})
        return
    count = total = 0
    for name, value in leaves:
        if isinstance(value, torch.Tensor):
            size = math.prod(value.shape) * value.dtype.itemsize
            count, total = count + 1, total + size
            dtype = str(value.dtype).removeprefix("torch.")
            click.echo(f"{name}  {dtype} {list(value.shape)}  {size_text(size)}")
        else:
            text = repr(value)
            click.echo(f"{name}  {text if len(text) <= 80 else text[:77] + '...'}")
    click.echo(f"{count} tensors, {size_text(total)}")


@checkpoint.command()
@click.argument("file", type=click.Path())
@as_json
def verify(file: str, json_: bool) -> None:
    """Check every byte of FILE, written by cstorch.save, against its checksums."""
    count = cstorch.storage.verify(file)
    if json_:
        write_json({"file": file, "tensors": count})
        return
    click.echo(f"{file} is as it was written: {count} tensors.")


@checkpoint.command()
@click.argument("first", type=click.Path())
@click.argument("second", type=click.Path())
@as_json
def diff(first: str, second: str, json_: bool) -> None:
    """List what differs between two checkpoints; ends with status 1 when something does."""
    before, after = (dict(_leaves(cstorch.load(file))) for file in (first, second))
    found = [f"- {name}" for name in before if name not in after]
    found += [f"+ {name}" for name in after if name not in before]
    for name, value in before.items():
        what = _difference(value, after[name]) if name in after else None
        if what is not None:
            found.append(f"! {name}  {what}")
    if json_:
        write_json({"differences": found})
    else:
        click.echo("\n".join(found or ["no difference"]))
    if found:
        raise click.exceptions.Exit(1)


@checkpoint.command()
@click.argument("source", type=click.Path())
@click.argument("target", type=click.Path())
@click.option(
    "--to",
    "kind",
    type=click.Choice(["cstorch", "torch", "safetensors", "reference"]),
    default="cstorch",
    show_default=True,
    help="cstorch.save's files; torch.save's; safetensors; or the layout of the reference implementation.",
)
def convert(source: str, target: str, kind: str) -> None:
    """Write what SOURCE holds to TARGET in another format."""
    state = cstorch.load(source, "cpu" if kind == "torch" else "cache")
    if kind == "torch":
        torch.save(state, target)
    elif kind == "safetensors":
        leaves = dict(_leaves(state))
        tensors = {name: value for name, value in leaves.items() if isinstance(value, torch.Tensor)}
        write_safetensors(tensors, target)
        if len(tensors) < len(leaves):
            click.echo(f"left out, as safetensors files hold tensors only: {', '.join(leaves.keys() - tensors)}")
    elif kind == "reference":
        write_reference(state, target)
    else:
        cstorch.save(state, target)
    click.echo(f"{target} is written.")


def _described(file: str) -> Any:
    """The state dict of a file, without the contents of its tensors if it is one of ours."""
    try:
        opened = opened_checkpoint(file)
    except CheckpointError:
        return cstorch.load(file)

    def shape_of(number: int) -> torch.Tensor:
        dtype, shape, stride, _, _ = opened.geometry(number)
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")

    decoder = Decoder(shape_of, lambda name, path: "(pickled)", make_array=shape_of)
    return decoder.decode(json.loads(opened.index.tree))


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, (dict, list, tuple)) and len(value):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(part, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _summary(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)


def _difference(a: Any, b: Any) -> str | None:
    """How two leaves differ; None when they do not."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{a.dtype} {list(a.shape)} became {b.dtype} {list(b.shape)}"
        same = a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8)
        if torch.equal(*same):
            return None
        wide = torch.complex128 if a.is_complex() else torch.float64
        gap = (a.to(wide) - b.to(wide)).abs()
        return f"{int((gap != 0).sum())} of {gap.numel()} elements differ, by up to {gap.max().item():.3g}"
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return None if type(a) is type(b) and np.array_equal(a, b) else "the arrays differ"
    return None if type(a) is type(b) and a == b else f"{a!r} became {b!r}"
