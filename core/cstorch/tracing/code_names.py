"""What functions name in their code: the attributes that they may read, and the constants that they subscript with."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterable, Iterator
from typing import Any


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


class CodeNames:
    """Collects what code names.

    Attributes:
        names: Names of attributes, methods and global variables.
        keys: Constants in `x[key]` and `x.get(key)`.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.keys: set[Any] = set()

    def add(self, code: types.CodeType) -> None:
        """Collect from one function, without those in it."""
        self.names.update(code.co_names)
        self.keys.update(_keys(code))

    def add_methods(self, classes: Iterable[type]) -> None:
        """Collect from the methods and properties of `classes` that are named so far, or by each other."""
        bodies: dict[str, list[types.CodeType]] = {}
        for kind in classes:
            for base in kind.__mro__:
                for name, value in vars(base).items():
                    bodies.setdefault(name, []).extend(_bodies(value))
        known: set[str] = set()
        while new := (self.names & bodies.keys()) - known:
            known |= new
            for name in new:
                for body in bodies[name]:
                    for code in codes(body):
                        self.add(code)


_CONSTRUCTORS = frozenset({"__init__", "__post_init__", "__attrs_post_init__", "__new__", "__setstate__"})


def assigned_by_methods(kind: type, libraries: Iterable[str]) -> set[str]:
    """Names of attributes that methods of a class, but its constructor, assign.

    Args:
        kind: The class; those that it derives from count too.
        libraries: Packages whose classes do not count.
    """
    return {
        instruction.argval
        for base in kind.__mro__
        if base.__module__.partition(".")[0] not in libraries
        for name, value in vars(base).items()
        if name not in _CONSTRUCTORS
        for body in _bodies(value)
        for code in codes(body)
        for instruction in dis.get_instructions(code)
        if instruction.opname == "STORE_ATTR"
    }


def _bodies(value: Any) -> Iterator[types.CodeType]:
    """The code of a method or property."""
    for part in (value, getattr(value, "fget", None), getattr(value, "__func__", None), getattr(value, "func", None)):
        if isinstance(part, types.FunctionType):
            yield part.__code__


def _keys(code: types.CodeType) -> Iterator[Any]:
    last: dis.Instruction | None = None
    for now in dis.get_instructions(code):
        if now.opname in ("CACHE", "PRECALL", "PUSH_NULL"):
            continue
        if (
            last is not None
            and _is_constant(last)
            and (now.opname == "BINARY_SUBSCR" or (now.opname == "BINARY_OP" and now.argrepr == "[]"))
        ):
            yield last.argval
        if last is not None and last.argval == "get" and _is_constant(now):
            yield now.argval
        last = now


def _is_constant(instruction: dis.Instruction) -> bool:
    return instruction.opname in ("LOAD_CONST", "LOAD_SMALL_INT") and isinstance(instruction.argval, (str, int, bytes))
