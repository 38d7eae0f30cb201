"""What commands have in common: the option --json, and names such as module:function."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def as_json(command: F) -> F:
    """Give a command the option --json, as its argument `json_`."""
    return click.option("--json", "json_", is_flag=True, help="Write JSON to standard output.")(command)


def write_json(value: Any) -> None:
    """Write a value to standard output."""
    click.echo(json.dumps(value, indent=2))


def is_script(target: str) -> bool:
    """Whether a target names a file of Python."""
    return target.endswith(".py")


def named(target: str) -> Any:
    """What `module:name` or `file.py:name` names; the current folder is looked in first.

    Args:
        target: The name.

    Raises:
        click.BadParameter: it has another form, or there is no such module, file or name.
    """
    where, _, name = target.rpartition(":")
    if not where or not name:
        raise click.BadParameter(f"{target!r} is not of the form module:name or file.py:name")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = _from_file(where) if is_script(where) else importlib.import_module(where)
        for part in name.split("."):
            module = getattr(module, part)
    except (FileNotFoundError, AttributeError) as error:
        raise click.BadParameter(f"{target!r} cannot be found: {error}") from error
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise  # something that the module itself imports
        raise click.BadParameter(f"{target!r} cannot be found: {error}") from error
    return module


def _from_file(path: str) -> Any:
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file {path}")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))  # where worker processes find it as well
    module = importlib.import_module(os.path.basename(path).removesuffix(".py"))
    if module.__file__ is None or not os.path.samefile(module.__file__, path):
        raise FileNotFoundError(f"a module of the same name, {module.__file__}, hides {path}; rename the file")
    return module
