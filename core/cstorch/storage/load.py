"""Reads a checkpoint file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from cstorch.device import CSX
from cstorch.errors import CheckpointError
from cstorch.tracing import nest


def load(checkpoint_file: Any, map_location: Any = None, **kwargs: Any) -> Any:
    """Load a checkpoint (`cerebras.pytorch.load`).

    Args:
        checkpoint_file: A path or an open binary file.
        map_location: None or "cache": tensors are views of the file, read when used. "cpu", a device, a
            callable or a dict: as for `torch.load`.
        **kwargs: Passed to `torch.load`. `weights_only` is True unless given: no code in the file is run.

    Returns:
        What was saved.

    Raises:
        CheckpointError: the file does not exist or is no checkpoint.
    """
    kwargs.setdefault("weights_only", True)
    is_path = isinstance(checkpoint_file, (str, os.PathLike))
    if is_path and not Path(checkpoint_file).is_file():
        raise CheckpointError(f"the checkpoint {checkpoint_file} does not exist or is not a file.")
    to_csx = isinstance(map_location, (str, torch.device)) and str(map_location).startswith(CSX.type)
    if to_csx or map_location in (None, "cache"):
        map_location = "cpu"
        if is_path:
            kwargs.setdefault("mmap", True)
    try:
        loaded = torch.load(checkpoint_file, map_location=map_location, **kwargs)
    except Exception as error:
        raise CheckpointError(f"{checkpoint_file} cannot be read as a checkpoint: {error}") from error
    return nest.map_leaves(_on_csx, loaded) if to_csx else loaded


def _on_csx(leaf: Any) -> Any:
    return leaf.to(CSX) if isinstance(leaf, torch.Tensor) else leaf
