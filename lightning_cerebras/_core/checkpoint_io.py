"""Checkpoints of a csx Trainer: written by `cstorch.save`, so that they open on any machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class CSXCheckpointIOMixin:
    """Writes whole files or none, with csx tensors as cpu tensors; reads what Lightning reads."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint.

        Args:
            checkpoint: What the Trainer dumps.
            path: A local path or an fsspec URL.
            storage_options: Not supported, as in Lightning's own.
        """
        import cstorch
        from cstorch.storage.save import on_host

        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(on_host(checkpoint), path, storage_options)  # type: ignore[misc]
            return
        os.makedirs(Path(path).parent, exist_ok=True)
        cstorch.save(checkpoint, path)
