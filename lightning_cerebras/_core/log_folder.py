"""Where on this host a Trainer leaves what no logger of its own keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def log_folder(trainer: Any) -> Path | None:
    """The log folder of the first logger that has one on this host; None where none has."""
    found: list[Any] = [getattr(logger, "log_dir", None) for logger in trainer.loggers]
    return next((Path(folder) for folder in found if _is_local(folder)), None)


def root_folder(trainer: Any) -> Path:
    """The Trainer's `default_root_dir`, where that is on this host; the working folder otherwise."""
    return Path(trainer.default_root_dir if _is_local(trainer.default_root_dir) else ".")


def _is_local(folder: Any) -> bool:
    """Whether a folder is neither an fsspec URL nor what a stand-in for a logger answers to every question."""
    return isinstance(folder, (str, Path)) and bool(folder) and "://" not in str(folder)
