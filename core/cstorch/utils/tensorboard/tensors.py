"""Whole tensors beside event files: one checkpoint file each, below the folder `tensors` of a run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import torch

from cstorch.storage import load, save

FOLDER = "tensors"
_ENDING = ".h5"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, eq=False)
class TensorDescriptor:
    """A tensor that was summarized.

    Attributes:
        step: The step it is of.
        ns_since_epoch: When it was written.
        tensor: The tensor.
    """

    step: int
    ns_since_epoch: int
    tensor: torch.Tensor

    @property
    def utctime(self) -> datetime:
        """When it was written, in UTC, to the microsecond."""
        return _EPOCH + timedelta(microseconds=self.ns_since_epoch // 1000)

    def to_dict(self) -> dict[str, Any]:
        """The attributes as a dict."""
        return {"step": self.step, "ns_since_epoch": self.ns_since_epoch, "tensor": self.tensor}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TensorDescriptor:
        """The descriptor that `to_dict` was called on."""
        return cls(**values)


def write_tensor(run: str | os.PathLike[str], name: str, tensor: torch.Tensor, step: int) -> Path:
    """Write a tensor to a file of its own.

    Args:
        run: The folder of the run.
        name: The tensor's name; a slash makes a folder.
        tensor: A tensor whose contents are there.
        step: The step it is of.

    Returns:
        The file.
    """
    now = time.time_ns()
    folder = Path(run, FOLDER, *map(_spelled, name.split("/")))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{step}-{now}{_ENDING}"
    save(TensorDescriptor(step, now, tensor.detach()).to_dict(), path)
    return path


def tensor_files(run: str | os.PathLike[str]) -> dict[str, list[Path]]:
    """The files of all tensors of a run by name, in the order they were written."""
    found: dict[str, list[Path]] = {}
    top = Path(run, FOLDER)
    for folder, _, files in os.walk(top):
        written = sorted((file for file in files if _step_and_time(file)), key=lambda f: _step_and_time(f)[::-1])
        if written:
            parts = Path(folder).relative_to(top).parts
            found["/".join(map(_meant, parts))] = [Path(folder, file) for file in written]
    return found


def read_tensors(files: list[Path], step: int | None = None) -> Iterator[TensorDescriptor]:
    """The tensors in files, those of one step when it is given."""
    for file in files:
        if step is None or _step_and_time(file.name)[0] == step:
            yield TensorDescriptor.from_dict(load(file, "cpu"))


def _spelled(part: str) -> str:
    """A folder's name for a part of a tensor's name, whatever it is: no part, dots, and what no file may be called."""
    return quote(part, safe=" ()[]+,;=@") if part.strip(".") else "%" + "%2E" * len(part)


def _meant(part: str) -> str:
    return unquote(part[1:] if part == "%" or part.startswith("%%") else part)


def _step_and_time(file: str) -> tuple[int, ...]:
    step, _, when = file.removesuffix(_ENDING).rpartition("-")
    try:
        return (int(step), int(when)) if file.endswith(_ENDING) else ()
    except ValueError:
        return ()
