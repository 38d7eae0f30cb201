"""Writes a checkpoint file whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from cstorch.device import CsxTensor, to_host
from cstorch.errors import CheckpointError
from cstorch.tracing import nest


def save(obj: dict[str, Any], checkpoint_file: str | os.PathLike[str]) -> None:
    """Save a state dict to a file (`cerebras.pytorch.save`).

    Tensors on csx are written as cpu tensors, so the file opens with `torch.load` on any machine. The file
    appears complete or not at all, also when the process dies; an existing file is replaced.

    Args:
        obj: The object to save, usually a dict of state dicts.
        checkpoint_file: Where to.

    Raises:
        CheckpointError: the file cannot be written. What was there before is still there.
    """
    path = Path(checkpoint_file)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save(on_host(obj), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {path} cannot be written: {error.strerror or error}. Name a file in a folder that "
            "exists, can be written and has room."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def on_host(obj: Any) -> Any:
    """`obj` with csx tensors as cpu tensors; a tensor that occurs twice stays one."""
    known: dict[int, torch.Tensor] = {}

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, CsxTensor):
            return known.setdefault(id(leaf), to_host(leaf, "saving a tensor").detach())
        return leaf

    return nest.map_leaves(convert, obj)
