"""Whole tensors beside event files: one checkpoint file each, below the folder `tensors` of a run."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple
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


class TensorFile(NamedTuple):
    """A file with one tensor."""

    step: int
    ns_since_epoch: int
    path: Path

    def read(self) -> TensorDescriptor:
        """What it holds."""
        return TensorDescriptor.from_dict(load(self.path, "cpu"))


def tensor_files(run: str | os.PathLike[str]) -> dict[str, list[TensorFile]]:
    """The files of all tensors of a run by name, in the order they were written."""
    found: dict[str, list[TensorFile]] = {}
    top = Path(run, FOLDER)
    for folder, _, files in os.walk(top):
        written = [file for file in (_tensor_file(folder, name) for name in files) if file is not None]
        if written:
            parts = Path(folder).relative_to(top).parts
            found["/".join(map(_meant, parts))] = sorted(written, key=lambda file: file.ns_since_epoch)
    return found


def _spelled(part: str) -> str:
    """A folder's name for a part of a tensor's name, whatever it is: no part, dots, and what no file may be called."""
    return quote(part, safe=" ()[]+,;=@") if part.strip(".") else "%" + "%2E" * len(part)


def _meant(part: str) -> str:
    return unquote(part[1:] if part == "%" or part.startswith("%%") else part)


def _tensor_file(folder: str, name: str) -> TensorFile | None:
    step, _, when = name.removesuffix(_ENDING).rpartition("-")
    try:
        return TensorFile(int(step), int(when), Path(folder, name)) if name.endswith(_ENDING) else None
    except ValueError:
        return None
