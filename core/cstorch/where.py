"""Names the line of the user's program that an error or a warning is about."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

_OURS = str(Path(__file__).parent) + os.sep
_HIDDEN = (
    "torch",
    "lightning",
    "pytorch_lightning",
    "lightning_fabric",
    "lightning_utilities",
    "torchmetrics",
)


@functools.cache
def is_library(filename: str) -> bool:
    """Whether a source file is part of cstorch, its Lightning binding, PyTorch or Lightning."""
    if filename.startswith((_OURS, "<")):
        return True
    binding = sys.modules.get("lightning_cerebras")
    if binding is not None and filename.startswith(str(Path(str(binding.__file__)).parent) + os.sep):
        return True
    parts = filename.split(os.sep)
    if "site-packages" in parts:
        package = parts[parts.index("site-packages") + 1]
        return package.removesuffix(".py") in _HIDDEN
    return parts[-1] == "contextlib.py"


def library_calls() -> list[str]:
    """Names of the functions of PyTorch and cstorch that run now, the innermost first, up to the user's line."""
    names = []
    frame = sys._getframe(1)
    while frame is not None and is_library(frame.f_code.co_filename):
        names.append(frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return names


def user_line() -> str:
    """`file.py:12` of the innermost frame outside PyTorch, Lightning and cstorch, or `an unknown line`."""
    frame = sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "an unknown line"


def is_ours(filename: str) -> bool:
    """Whether a source file is part of cstorch or of its Lightning binding."""
    binding = sys.modules.get("lightning_cerebras")
    root = str(Path(str(binding.__file__)).parent) + os.sep if binding is not None else _OURS
    return filename.startswith((_OURS, root))
