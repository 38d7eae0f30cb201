"""Loggers of classes, and levels (`cerebras.appliance.log`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar, overload

Kind = TypeVar("Kind", bound=type)

wsc_logger = logging.getLogger("wsc")
"""The logger of the servers of a cluster, of which there are none here."""


class ClassLogger:
    """A base with a logger, `self.logger`, named after the class or as `named_class_logger` says."""

    _logger_name: str = ""

    @property
    def logger(self) -> logging.Logger:
        """The logger of the class."""
        return logging.getLogger(self._logger_name or type(self).__name__)


@overload
def named_class_logger(name: Kind) -> Kind: ...


@overload
def named_class_logger(name: str) -> Callable[[Kind], Kind]: ...


def named_class_logger(name: Any) -> Any:
    """A decorator that names the logger of a `ClassLogger`.

    Args:
        name: The name; or the class itself, whose name it is then.

    Returns:
        The decorator; or the class.
    """

    def decorate(kind: Kind, chosen: str) -> Kind:
        kind._logger_name = chosen  # type: ignore[attr-defined]
        return kind

    return decorate(name, name.__name__) if isinstance(name, type) else lambda kind: decorate(kind, name)


def get_level_name(level: int | str) -> Any:
    """The number of a level's name, or the name of a number, as `logging.getLevelName`.

    Args:
        level: For example "INFO", in any case, or 20.

    Returns:
        20 or "INFO".

    Raises:
        ValueError: there is no level of that name.
    """
    found = logging.getLevelName(level.upper() if isinstance(level, str) else level)
    if isinstance(level, str) and not isinstance(found, int):
        raise ValueError(f"there is no level {level!r}. Use DEBUG, INFO, WARNING, ERROR or CRITICAL.")
    return found


def collect_wsc_log_settings() -> list[Any]:
    """Levels set for the servers of a cluster.

    Returns:
        An empty list: there are none here.
    """
    return []
