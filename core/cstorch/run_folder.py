"""Numbered folders for what runs leave behind, with a link `latest` to the newest."""

from __future__ import annotations

import os
from pathlib import Path


def make_run_folder(parent: Path) -> Path:
    """Make `parent/000001`, or the next number, and let `parent/latest` point there."""
    parent.mkdir(parents=True, exist_ok=True)
    number = 1 + max((int(p.name) for p in parent.iterdir() if p.name.isdigit()), default=0)
    while True:
        folder = parent / f"{number:06d}"
        try:
            folder.mkdir()
            break
        except FileExistsError:
            number += 1
    latest = parent / f".latest.{os.getpid()}"
    latest.unlink(missing_ok=True)
    latest.symlink_to(folder.name)
    os.replace(latest, parent / "latest")
    return folder
