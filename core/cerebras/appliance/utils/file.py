"""Links between files (`cerebras.appliance.utils.file`)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def create_symlink(
    symlink_path: str | os.PathLike[str],
    target_path: str | os.PathLike[str],
    target_is_directory: bool = False,
    replace: bool = True,
) -> None:
    """Make a symbolic link.

    Args:
        symlink_path: The link.
        target_path: What it points to; relative to the folder of the link.
        target_is_directory: As `os.symlink`.
        replace: Whether a link that is there is replaced.

    Raises:
        FileExistsError: there is a file, or a link and `replace` is False.
    """
    link = Path(symlink_path)
    if replace and link.is_symlink():
        with contextlib.suppress(FileNotFoundError):
            link.unlink()
    os.symlink(target_path, link, target_is_directory)
