"""Choosing parameters by name (`cerebras.pytorch.utils.utils`, where programs look for it)."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence

import torch

FilterCallable = Callable[[str, torch.nn.Parameter], bool]
"""Says of a name and a parameter whether it is meant."""


def convert_glob_to_regex(pattern: str) -> re.Pattern[str]:
    """A pattern with `*` and `?` as a regular expression, to be searched for in a name.

    Args:
        pattern: For example "*decoder*weight"; a text that begins with "re:" is a regular expression already.

    Raises:
        ValueError: the regular expression is none.
    """
    given = pattern.removeprefix("re:") if pattern.startswith("re:") else None
    try:
        return re.compile(fnmatch.translate(pattern) if given is None else given)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}.") from error


def make_param_filter(patterns: str | Sequence[str] | FilterCallable) -> FilterCallable:
    """A function that chooses parameters.

    Args:
        patterns: One or several patterns for `convert_glob_to_regex`, any of which may match; or such a function.
    """
    if callable(patterns):
        return patterns
    listed = [patterns] if isinstance(patterns, str) else list(patterns)
    compiled = [convert_glob_to_regex(pattern) for pattern in listed]
    return lambda name, parameter: any(expression.search(name) for expression in compiled)
