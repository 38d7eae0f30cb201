"""Checkpoints of a csx Trainer: written by `cstorch.save`, so that they open on any machine."""

from __future__ import annotations

import inspect
import os
import warnings
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import torch

FORMATS = ("cstorch", "torch")


class CSXCheckpointIOMixin:
    """Writes whole files or none, with csx tensors as cpu tensors; reads both formats.

    Args:
        format: "cstorch" writes what `cstorch.save` does, which opens in `torch.load`, h5py and `cstorch.load`;
            "torch" writes what Lightning does on the cpu.

    Raises:
        ValueError: another format.
    """

    def __init__(self, format: str = "cstorch") -> None:  # noqa: A002
        super().__init__()
        if format not in FORMATS:
            raise ValueError(f"CSXCheckpointIO(format={format!r}): expected {' or '.join(map(repr, FORMATS))}.")
        self.format = format

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint.

        Args:
            checkpoint: What the Trainer dumps.
            path: A local path or an fsspec URL.
            storage_options: Not supported, as in Lightning's own.
        """
        import cstorch
        from cstorch.storage.save import on_host

        if self.format == "torch" or storage_options is not None or "://" in str(path):
            super().save_checkpoint(on_host(checkpoint), path, storage_options=storage_options)  # type: ignore[misc]
            return
        os.makedirs(Path(path).parent, exist_ok=True)
        try:
            cstorch.save(checkpoint, path)
        except cstorch.errors.CheckpointContentError as error:
            if not _pickled(checkpoint, path, str(error)):
                super().save_checkpoint(on_host(checkpoint), path)  # type: ignore[misc]

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> Any:
        """Read a checkpoint of either format.

        Args:
            path: A local path or an fsspec URL.
            map_location: As for `torch.load`; as saved, that is on the cpu, by default.
            weights_only: As for `torch.load`; what the Lightning release does by default.
        """
        options: dict[str, Any] = {} if map_location is None else {"map_location": map_location}
        if weights_only is not None:
            if "weights_only" not in inspect.signature(super().load_checkpoint).parameters:  # type: ignore[misc]
                with fsspec.open(str(path), "rb") as file:
                    return torch.load(file, map_location=map_location, weights_only=weights_only)
            options["weights_only"] = weights_only
        return super().load_checkpoint(path, **options)  # type: ignore[misc]


def _pickled(checkpoint: dict[str, Any], path: Any, why: str) -> bool:
    """Write what Lightning's own writer would: objects of any class, no hyperparameters that cannot be pickled.

    False where only that writer can, because of a class or an object as the key of a dict.
    """
    import cstorch

    warnings.warn(
        f"checkpoints hold an object that is pickled: {why} They are written with it, and loading them whole needs "
        "weights_only=False.",
        stacklevel=4,
    )
    try:
        cstorch.save(checkpoint, path, pickle_objects=True)
    except cstorch.errors.CheckpointContentError as error:
        if "hyper_parameters" not in checkpoint:
            return False
        warnings.warn(f"hyper_parameters are left out of the checkpoint: {error}", stacklevel=4)
        del checkpoint["hyper_parameters"]
        cstorch.save(checkpoint, path, pickle_objects=True)
    return True
