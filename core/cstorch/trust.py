"""Whether a file of code can be loaded: only if nobody but this user and root can have written it."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def is_trusted(path: Path) -> bool:
    """True when `path`, its folder and the folder above belong to this user or root and no other can write them."""
    for item in (path, path.parent, path.parent.parent):
        info = item.stat()
        if info.st_uid not in (0, os.getuid()) or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False
    return True
