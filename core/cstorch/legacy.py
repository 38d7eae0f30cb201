"""Spellings of older releases, which are accepted with a warning, or named in the error where they are not there."""

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


_GONE = {
    "compile_step": "Decorate the step with @cstorch.trace.",
    "configure": "Make a backend with cstorch.backend(...).",
    "save_summaries": "Give DataExecutor a writer, and call cstorch.summarize_scalar or summarize_tensor in the step.",
    "cirh": "Write the operation with those of torch.",
    "lib": "It is the inside of the reference; leave it out.",
}
"""Names that programs use of old releases and of the inside of the reference, and what to do instead."""


def advice_on(name: str) -> str:
    """What to do instead of using a name of the package that is not there, for its error.

    Args:
        name: The name.

    Returns:
        A blank and a sentence; nothing for a name that no release had.
    """
    return f" {_GONE[name]}" if name in _GONE else ""
