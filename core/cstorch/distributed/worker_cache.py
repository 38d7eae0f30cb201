"""Where workers may keep copies of data, and whether it fits (`distributed.WORKER_CACHE_ROOT`)."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

WORKER_CACHE_ROOT = os.path.join(tempfile.gettempdir(), "cstorch_worker_cache")
"""The folder; made by who uses it."""


def hit_worker_cache_limit(src_dir: str, dest_dir: str) -> tuple[bool, int, int]:
    """Whether a copy of a folder would not fit.

    Args:
        src_dir: The folder.
        dest_dir: Where the copy is to be; what is there already is replaced.

    Returns:
        Whether it is too large, its size and the space for it, both in bytes.
    """
    size = _size(Path(src_dir))
    present = next(path for path in (Path(dest_dir), *Path(dest_dir).resolve().parents) if path.exists())
    space = shutil.disk_usage(present).free + _size(Path(dest_dir))
    return size > space, size, space


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
