"""Spellings of older releases, which are accepted with a warning."""

from __future__ import annotations

import warnings

import torch

from cstorch.where import user_line


def warn_of_old(what: str, instead: str) -> None:
    """Warn, with the user's line, that `what` is an older spelling.

    Args:
        what: The spelling, as the program writes it.
        instead: What to do, a sentence.
    """
    warnings.warn(f"{what} (at {user_line()}) is of an older release. {instead}", FutureWarning, stacklevel=3)


def manual_seed(seed: int) -> None:
    """`torch.manual_seed`, as old programs call it; warns.

    Args:
        seed: A whole number.
    """
    warn_of_old(f"cstorch.manual_seed({seed})", f"Write torch.manual_seed({seed}).")
    torch.manual_seed(seed)
