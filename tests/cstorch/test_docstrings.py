"""The docstring of every name of the specification tells its arguments, what it returns and what it raises."""

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap

import pytest
from test_specification import SIGNATURES, find

SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$", re.MULTILINE)
NOTHING = ("None", "NoReturn", inspect.Signature.empty)


def sections(thing):
    """The sections of a docstring, and the text before them as "Summary"."""
    parts = SECTION.split(inspect.getdoc(thing) or "")
    return {"Summary": parts[0], **dict(zip(parts[1::2], parts[2::2]))}


def entries(text):
    """The names that a section explains."""
    return set(re.findall(r"^ {4}\*{0,2}([\w, *]+):", text, re.MULTILINE)) if text else set()


def named(text):
    return {name.strip(" *") for entry in entries(text) for name in entry.split(",")}


def own_nodes(function):
    """The nodes of a function's body, without those of functions and classes within it."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    pending = list(tree.body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            pending.extend(ast.iter_child_nodes(node))


def raised(function):
    """Names of the errors that a function raises by its own code."""
    for node in own_nodes(function):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            name = node.exc.func
            text = name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")
            if text[:1].isupper():
                yield text


def missing(name, thing):
    """What the docstring of a function or class does not tell."""
    if inspect.ismodule(thing):  # called like the function of its name
        thing = getattr(thing, name)
    told, is_class = sections(thing), inspect.isclass(thing)
    explained = named(told.get("Args")) | named(told.get("Attributes"))
    if not getattr(thing, "_is_protocol", False):  # which nobody makes
        for parameter in inspect.signature(thing).parameters:
            if parameter not in ("self", *explained):
                yield f"Args: {parameter}"
    function = thing
    if is_class:
        function = vars(thing).get("__post_init__" if dataclasses.is_dataclass(thing) else "__init__")
    if not inspect.isfunction(function) or function.__module__ == "typing":
        return
    returned = None if is_class else inspect.signature(thing).return_annotation
    if returned not in (None, *NOTHING) and not told.keys() & {"Returns", "Yields"}:
        yield "Returns"
    for error in dict.fromkeys(raised(function)):
        if error not in told.get("Raises", ""):
            yield f"Raises: {error}"


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_name_of_the_specification_tells_all_of_it(name):
    assert [*missing(name, find(name))] == []


@pytest.mark.parametrize("kind", ["csx_backend.CsxBackend", "cpu_backend.CpuBackend", "gpu_backend.GpuBackend"])
def test_so_do_the_backends(kind):
    module, name = kind.split(".")
    assert [*missing(name, getattr(importlib.import_module(f"cstorch.backends.{module}"), name))] == []


def test_what_is_looked_for():
    def f(a, b):  # noqa: D417
        """Add.

        Args:
            a: One.
        """
        if a:
            raise ValueError(b)
        return a

    def g(a: int, *b: int, **c: int) -> int:
        """Add.

        Args:
            a: One.
            *b: More.
            **c: More.

        Returns:
            The sum.

        Raises:
            ValueError: never.
        """
        if a:
            raise ValueError(b)
        return a

    f.__annotations__["return"] = int
    assert [*missing("f", f)] == ["Args: b", "Returns", "Raises: ValueError"]
    assert [*missing("g", g)] == []
