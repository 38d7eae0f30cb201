"""Whether a file of code can be loaded: only if nobody but this user and root can have written it."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def is_private(path: Path) -> bool:
    """True when `path` belongs to this user or root and no other can write it."""
    info = path.stat()
    return info.st_uid in (0, os.getuid()) and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def is_trusted(path: Path) -> bool:
    """True when `path`, its folder and the folder above belong to this user or root and no other can write them."""
    return all(map(is_private, (path, path.parent, path.parent.parent)))
