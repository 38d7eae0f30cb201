"""What a traced step leaves in variables, attributes, dicts and lists: state, a number of each step, or a warning.

`self.running = 0.9 * self.running + x` gives an attribute a new tensor. In a replay the new value must be where
the next step looks for it, so it is copied into the tensor that was there when the step began. Where None was, a
tensor of its own takes its place, and the program holds for None only: the next call becomes another one.
"""

from __future__ import annotations

import collections
import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from cstorch.device import CsxTensor
from cstorch.errors import StateError
from cstorch.tracing import nest
from cstorch.tracing.attribute_reads import MISSING, is_compared
from cstorch.tracing.context import context
from cstorch.tracing.host_attributes import HostAttributes
from cstorch.tracing.host_values import HostValue
from cstorch.tracing.modules import ModuleWatch
from cstorch.tracing.program import Effect
from cstorch.tracing.recorder import Recorder
from cstorch.tracing.scalars import HostScalar, plain_number
from cstorch.tracing.surroundings import Cells, Holder, Surroundings, Variables, short


def look_around(recorder: Recorder, watch: ModuleWatch, step: Callable[..., Any], arguments: list[Any]) -> Rebinding:
    """Note everything that a step can reach before it is traced."""
    surroundings = Surroundings(watch.meet_all)
    watch.look_around(surroundings)
    surroundings.visit(step, "", 0)
    for argument in arguments:
        surroundings.visit(argument, type(argument).__name__, 0)
    return Rebinding(recorder, watch, surroundings)


class Rebinding:
    """Compares everything that the step can reach with what it was.

    Args:
        recorder: The trace.
        watch: The modules that it met.
        surroundings: What else it can reach.
    """

    def __init__(self, recorder: Recorder, watch: ModuleWatch, surroundings: Surroundings) -> None:
        self._recorder, self._watch, self._surroundings = recorder, watch, surroundings
        self._module_holders: set[int] = set()
        self._numbers = HostAttributes(recorder.scalars, self.holders)

    @property
    def holders(self) -> list[Holder]:
        """Everything found that holds values."""
        return [*self._watch.holders, *self._surroundings.holders]

    def settle(self, recording: Any, name: str) -> None:
        """Record what carries values over, and warn of what will stand still.

        Raises:
            StateError: the step leaves a traced tensor where a replay cannot put the next one.
        """
        changes: list[str] = []
        self._numbers.conceal()
        self._module_holders = {id(holder) for holder in self._watch.holders}
        for holder in self.holders:
            now = holder.items()
            appended = self._appended(holder, now)
            if appended:
                self._append_again(holder, appended, recording)
                continue
            for key, value in now.items():
                before = holder.before.get(key, MISSING)
                if value is before:
                    continue
                kinds = [type(leaf) for leaf in nest.leaves(value)]
                if CsxTensor in kinds and any(self._is_traced(leaf) for leaf in nest.leaves(value)):
                    self._carry(holder, key, before, value, recording)
                elif HostValue in kinds:
                    recording.add_effect("closure", holder.set, (key, value), {})
                elif any(issubclass(kind, HostScalar) for kind in kinds):
                    recording.add_effect("host", holder.set, (key, value), {})
                    holder.set(key, nest.map_leaves(plain_number, value))
                elif not holder.internal and _differ(before, value):
                    changes.append(holder.path(key))
            if not holder.internal:
                changes += [holder.path(key) for key in holder.before if key not in now]
        if changes:
            listed = ", ".join(changes[:5]) + (f" and {len(changes) - 5} more" if len(changes) > 5 else "")
            warnings.warn(
                f"the traced step {name!r} changes {listed}. Its Python ran once, while it was traced, so they will "
                "not change again. Change them in a function decorated with @cstorch.step_closure and called in the "
                "step, or in the loop around it; or keep a count in a tensor, which the step changes in place.",
                stacklevel=5,
            )

    def restore(self) -> None:
        """Take traced tensors out of everything again: the trace failed."""
        for holder in self.holders:
            for key, value in list(holder.items().items()):
                before = holder.before.get(key, MISSING)
                leaves = nest.leaves(value) if value is not before else ()
                if any(isinstance(leaf, HostScalar) or self._is_traced(leaf) for leaf in leaves):
                    if before is not MISSING:
                        holder.set(key, before)
                    elif isinstance(holder.thing, (list, collections.deque)):
                        holder.thing.pop()
                    elif not isinstance(holder.thing, (Cells, Variables)):
                        del holder.thing[key]

    def _appended(self, holder: Holder, now: dict[Any, Any]) -> list[Any]:
        """What the step has put behind a list that is otherwise as it was, if more than numbers that stand still."""
        if holder.internal or not isinstance(holder.thing, list) or len(now) <= len(holder.before):
            return []
        values = holder.thing[len(holder.before) :]
        if any(now[key] is not value for key, value in holder.before.items()) or all(map(_is_frozen, values)):
            return []
        return values

    def _append_again(self, holder: Holder, values: list[Any], recording: Any) -> None:
        """Take them out again; each run appends its own, like a step closure."""
        if context.iteration is not None and any(map(self._is_traced, nest.leaves(values))):
            raise self._no_append(holder)
        del holder.thing[len(holder.before) :]
        frozen = [v for v in nest.leaves(values) if _is_frozen(v)]
        if frozen:
            warnings.warn(
                f"the traced step appends {short(frozen[0])} to the list {holder.name or 'of the step'}. Every run of "
                "the step will append the same, since its Python ran once, while it was traced. Append a tensor of the "
                "step or a number that it was called with, or append in a function decorated with "
                "@cstorch.step_closure.",
                stacklevel=6,
            )
        find = self._finder(holder)
        recording.add_effect("closure", lambda more: find().extend(more), (values,), {})

    def _finder(self, holder: Holder) -> Callable[[], Any]:
        """Looks a list up where the step found it, since it may be another one later: `self.outputs = []`."""
        if holder.find is not None:
            return holder.find
        for parent in self.holders:
            for key, value in parent.before.items():
                if value is not holder.thing or parent is holder:
                    continue
                if not isinstance(parent.thing, (list, dict)) or parent.entry[0] == ".":
                    return lambda: parent.items()[key]
                outer = self._finder(parent)
                return lambda: outer()[key]
        return lambda: holder.thing

    def _is_traced(self, leaf: Any) -> bool:
        return isinstance(leaf, CsxTensor) and leaf._recorder is self._recorder and leaf.is_handle

    def _carry(self, holder: Holder, key: Any, before: Any, value: Any, recording: Any) -> None:
        path = holder.path(key)
        if isinstance(holder.thing, (list, collections.deque)) and before is MISSING:
            raise self._no_append(holder)
        in_module = id(holder) in self._module_holders
        if in_module and not self._watch.was_read(holder, key, before) and _is_left(before):
            self._leave(holder, key, before, value, recording)
            return
        if before is MISSING and in_module:
            raise self._no_place(path, key, before, value)
        left = self._write(path, key, before, value)
        holder.set(key, left)
        if in_module:
            self._watch.carries(holder, key, before, left)
        else:
            self._guard(holder, key, before, left, path)
        if left is not before:
            recording.effects.append(Effect("host", holder.set, (key, left), {}))

    def _leave(self, holder: Holder, key: Any, before: Any, value: Any, recording: Any) -> None:
        """An attribute that the step does not read: each run leaves new tensors there, as eager code does."""
        recording.add_effect("host", functools.partial(_set_left, holder), (key, value), {})
        if before is MISSING:
            del holder.thing[key]
        else:
            holder.set(key, before)

    def _write(self, path: str, key: Any, before: Any, value: Any) -> Any:
        """Record the copies of `value`'s traced tensors to where later steps look for them; what to leave there."""
        if self._is_traced(value):
            place = before
            if before is None or before is MISSING or (isinstance(before, CsxTensor) and before.is_handle):
                place = CsxTensor(torch.zeros(value.shape, dtype=value.dtype))
            elif not isinstance(before, torch.Tensor) or before.shape != value.shape or before.dtype != value.dtype:
                raise self._no_place(path, key, before, value)
            with torch.no_grad():
                place.copy_(value)
            return place
        parts = nest.children(value)
        if parts is None:
            return value
        old = nest.children(before) if type(before) is type(value) else None
        olds = old[1] if old is not None and old[0] == parts[0] else [None] * len(parts[1])
        left = [self._write(path, key, o, v) for o, v in zip(olds, parts[1], strict=True)]
        if old is not None and olds is old[1] and all(a is b for a, b in zip(left, olds, strict=True)):
            return before
        return nest.rebuild(value, parts[0], left)

    def _guard(self, holder: Holder, key: Any, before: Any, left: Any, path: str) -> None:
        scope = self._recorder.scalars
        words = f"{path}, which the step carries over, was given something else"
        if isinstance(holder.thing, Cells):
            here = f"{scope.object(holder.thing.cells[key])}.cell_contents"
        else:
            thing = holder.thing.scope if isinstance(holder.thing, Variables) else holder.thing
            code = repr(key) if isinstance(key, (str, int)) else scope.object(key)
            here = f"{scope.object(thing)}[{code}]"
            if before is MISSING:
                scope.guard(f"{code} not in {scope.object(thing)}", True, words)
                return
            if left is before and holder.entry[0] == "[":
                return  # one of many weights of an average: its container is guarded where it is held
        if before is None:
            scope.guard(f"{here} is None", True, words)
        elif left is before:
            scope.guard(f"{here} is {scope.object(left)}", True, words)

    @staticmethod
    def _no_append(holder: Holder) -> StateError:
        return StateError(
            f"the step appends a traced tensor to the list {holder.name or 'of the step'}. A replay does not run "
            "this Python again, and the values come to the host on activation steps only. Append in a function "
            "decorated with @cstorch.step_closure, called with the tensor: it runs after each of those with that "
            "step's value."
        )

    @staticmethod
    def _no_place(path: str, key: Any, before: Any, value: Any) -> StateError:
        value = next(leaf for leaf in nest.leaves(value) if isinstance(leaf, CsxTensor))
        was = f"a tensor {tuple(before.shape)} {before.dtype}" if isinstance(before, torch.Tensor) else "no tensor"
        return StateError(
            f"the step sets {path} to a traced tensor {tuple(value.shape)} {value.dtype}, and before it held {was}. "
            "What one step leaves for the next must have a place of the same shape and dtype from the start: "
            f"register it as a buffer, for example self.register_buffer({key!r}, torch.zeros({tuple(value.shape)})), "
            "set it to None before the first step, or use a local variable if no later step reads it."
        )


_left = WeakIdKeyDictionary()
"""Tensors that some run has left in an attribute that its step does not read."""


def _set_left(holder: Holder, key: Any, value: Any) -> None:
    def left(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        made = CsxTensor(leaf)
        _left[made] = True
        return made

    holder.set(key, nest.map_leaves(left, value))


def _is_left(before: Any) -> bool:
    """Whether no tensor is there that the user has made."""
    return all(leaf in _left for leaf in nest.leaves(before) if isinstance(leaf, torch.Tensor))


def _is_frozen(value: Any) -> bool:
    """Whether a value of the host may be another one at each run, and no one would know."""
    return type(value) in (bool, int, float, torch.Tensor)


def _differ(before: Any, now: Any) -> bool:
    """Whether a change is one that the user's Python sees as such, rather than an object made anew."""
    if before is MISSING:
        return not callable(now)
    if is_compared(before) and is_compared(now):
        return type(before) is not type(now) or before != now
    return is_compared(before) or is_compared(now) or isinstance(now, (list, dict, set, torch.Tensor))
