"""What a step's Python can reach beside its arguments, and what became of it: variables, objects, dicts, lists.

Before the trace each holder of values is noted with what it holds. Afterwards a value that the step has replaced
by a traced one is state, and goes back into the tensor that was there; a host number derived from the step's
arguments is assigned again after each run; any other change is named in a warning, since it will not happen again.
"""

from __future__ import annotations

import argparse
import collections
import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from cstorch.tracing.attribute_reads import is_compared, is_same_object
from cstorch.tracing.code_names import CodeNames, codes
from cstorch.tracing.scalars import ScalarScope
from cstorch.where import is_ours

LIBRARIES = {"torch", "lightning", "pytorch_lightning", "lightning_fabric", "lightning_utilities", "torchmetrics"}
LIBRARIES |= {"numpy", "cstorch", "cerebras", "lightning_cerebras", *sys.stdlib_module_names}
_LARGE = 1000  # a container with more entries is data


@dataclass
class Holder:
    """Something that holds values by key.

    Attributes:
        name: Its path in the program, for messages.
        thing: The object itself; a list, a mapping, or the cells of a function.
        entry: The path of an entry, with a place for its key.
        internal: Whether its changes are of no interest to the user.
        find: Looks up what is in its place now, where no other holder holds it.
        owner: The object or module whose attributes they are.
        anew: Keys of numbers that the step reads anew each time.
    """

    name: str
    thing: Any
    entry: str
    internal: bool = False
    find: Callable[[], Any] | None = None
    owner: Any = None
    anew: set[str] = field(default_factory=set)
    before: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.before = self.items()

    def items(self) -> dict[Any, Any]:
        """What it holds now."""
        if isinstance(self.thing, (list, collections.deque)):
            return dict(enumerate(self.thing))
        if isinstance(self.thing, Cells):
            return self.thing.values()
        return dict(self.thing)

    def set(self, key: Any, value: Any) -> None:
        """Hold `value` at `key`."""
        self.thing[key] = value

    def path(self, key: Any) -> str:
        """The path of the entry at `key`."""
        return self.name + self.entry.format(key)


class Cells:
    """The variables that functions share with the scopes around them.

    Args:
        cells: By name.
    """

    def __init__(self, cells: dict[str, Any]) -> None:
        self.cells = cells

    def values(self) -> dict[str, Any]:
        """Of those that have one."""
        found = {}
        for name, cell in self.cells.items():
            try:
                found[name] = cell.cell_contents
            except ValueError:
                continue
        return found

    def __setitem__(self, name: str, value: Any) -> None:
        self.cells[name].cell_contents = value


class Variables(dict[str, Any]):
    """The global variables that a function reads or assigns."""

    def __init__(self, names: set[str], scope: dict[str, Any]) -> None:
        super().__init__({name: scope[name] for name in names if name in scope})
        self.names, self.scope = names, scope


class Surroundings:
    """Everything that is reachable from a step by a bounded walk.

    Args:
        meet: Called with each module found.
    """

    def __init__(self, meet: Callable[[nn.Module], None]) -> None:
        self.holders: list[Holder] = []
        self._meet = meet
        self._visited: dict[int, Any] = {}
        self._code = CodeNames()
        self._classes: set[type] = set()
        self._variables: list[Holder] = []
        self._attributes: list[Holder] = []
        self._containers: list[Holder] = []

    def visit(self, value: Any, path: str, depth: int) -> None:
        """Note what `value` holds, and what that holds, some levels deep."""
        if depth > 5 or isinstance(value, (str, bytes, int, float, torch.Tensor, type, types.ModuleType)):
            return
        if id(value) in self._visited:
            return
        self._visited[id(value)] = value
        if isinstance(value, functools.partial):
            self.visit(value.func, path, depth)
            self.visit(value.args, path, depth)
        elif isinstance(value, types.MethodType):
            self.visit(value.__func__, path, depth)
            self.visit(value.__self__, type(value.__self__).__name__, depth)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value, depth)
        elif isinstance(value, nn.Module):
            self._meet(value)
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                self.visit(item, f"{path}[{index}]", depth + 1)
        elif isinstance(value, (list, collections.deque, MutableMapping)):
            if len(value) <= _LARGE:
                self._containers.append(self._hold(Holder(path, value, "[{!r}]"), depth))
        elif _is_plain_object(value):
            self._classes.add(type(value))
            self._attributes.append(self._hold(Holder(path, vars(value), ".{}", owner=value), depth))

    def visit_module(self, module: nn.Module, internal: frozenset[str]) -> None:
        """Note what the attributes of a module hold; the attributes themselves are followed elsewhere."""
        for name, value in list(module.__dict__.items()):
            if name not in internal and not name.startswith("_"):
                self.visit(value, f"{type(module).__name__}.{name}", 1)
        kind = type(module)
        if kind.__module__.partition(".")[0] not in LIBRARIES:
            self._classes.add(kind)
            self._visit_class(module, kind)
            for name in ("forward", "training_step", "validation_step", "test_step", "predict_step"):
                self.visit(vars(kind).get(name), "", 1)

    def _visit_class(self, module: nn.Module, kind: type) -> None:
        """Note the lists and dicts that are attributes of the class, until an instance has its own."""
        for name, value in list(vars(kind).items()):
            if isinstance(value, (list, dict)) and name not in vars(module) and not name.startswith("_"):
                self.visit(value, f"{kind.__name__}.{name}", 1)
                for holder in self._containers:
                    if holder.thing is value:
                        holder.find = functools.partial(getattr, module, name)

    def _hold(self, holder: Holder, depth: int) -> Holder:
        self.holders.append(holder)
        for key, value in holder.before.items():
            self.visit(value, holder.path(key), depth + 1)
        return holder

    def _visit_function(self, function: types.FunctionType, depth: int) -> None:
        if is_ours(function.__code__.co_filename):
            if not hasattr(function, "__wrapped__"):  # a step closure is host work
                for value in Cells(_cells(function)).values().values():
                    self.visit(value, "", depth + 1)
            return
        if str(function.__module__).partition(".")[0] in LIBRARIES:
            return
        names: set[str] = set()
        for code in codes(function.__code__):
            self._code.add(code)
            names.update(
                i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL")
            )
        self._variables.append(self._hold(Holder("", Cells(_cells(function)), "{}"), depth))
        scope = function.__globals__
        known = {name for name in names if name in scope and not isinstance(scope[name], types.ModuleType)}
        self._variables.append(self._hold(_GlobalsHolder("", Variables(known, scope), "{}"), depth))

    def guards(self, scope: ScalarScope) -> None:
        """Guard the numbers, strings, modules and functions that the step's code names and has not itself changed."""
        for holder in self._variables:
            for key, value, code in self._unchanged(holder, scope):
                _guard(scope, code, value, f"the variable {key!r} was {short(value)} and is something else now")
        self._code.add_methods(self._classes)
        for holders, read in ((self._attributes, self._code.names), (self._containers, self._code.keys)):
            for holder in holders:
                for key, value, code in self._unchanged(holder, scope, from_end=True):
                    if key in read:
                        words = f"{holder.path(key)} was {short(value)} and is something else now"
                        _guard(scope, code, value, words)

    def _unchanged(self, holder: Holder, scope: ScalarScope, from_end: bool = False) -> Iterator[tuple[str, Any, str]]:
        """Keys, values and expressions of what the step has left as it was; items of lists by both their indices."""
        now = holder.items()
        for key, value in holder.before.items():
            if not (is_compared(value) or is_same_object(value)) or key not in now or key in holder.anew:
                continue
            if now[key] is not value and not (is_compared(value) and now[key] == value):
                continue
            if isinstance(holder.thing, Cells):
                yield key, value, f"{scope.object(holder.thing.cells[key])}.cell_contents"
            else:
                thing = holder.thing.scope if isinstance(holder.thing, Variables) else holder.thing
                yield key, value, f"{scope.object(thing)}[{key!r}]"
                if from_end and isinstance(thing, (list, collections.deque)) and len(now) == len(holder.before):
                    yield key - len(now), value, f"{scope.object(thing)}[{key - len(now)}]"


class _GlobalsHolder(Holder):
    def items(self) -> dict[Any, Any]:
        return {name: self.thing.scope[name] for name in self.thing.names if name in self.thing.scope}

    def set(self, key: Any, value: Any) -> None:
        self.thing.scope[key] = value


def _guard(scope: ScalarScope, code: str, value: Any, words: str) -> None:
    if value is None:
        scope.guard(f"{code} is None", True, words)
    elif is_compared(value) and not isinstance(value, (torch.dtype, torch.device, tuple)):
        scope.guard(code, value, words)
    else:
        relation = "is" if is_same_object(value) else "=="
        scope.guard(f"{code} {relation} {scope.object(value)}", True, words)


def _cells(function: types.FunctionType) -> dict[str, Any]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))


def short(value: Any) -> str:
    """`value` in a message."""
    return repr(value)[:60] if is_compared(value) else f"a {type(value).__name__}"


def _is_plain_object(value: Any) -> bool:
    if not hasattr(value, "__dict__") or isinstance(
        value, (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    ):
        return False  # followed by optimizers and schedulers, also those of the user
    if isinstance(value, (argparse.Namespace, types.SimpleNamespace)):
        return True
    return type(value).__module__.partition(".")[0] not in LIBRARIES
