"""Follows the modules that a step uses: mode and attributes read are guards, what the step assigns is noted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.modules.module import register_module_forward_pre_hook

from cstorch._torch_private.tracing import outside_modes
from cstorch.device import CsxTensor
from cstorch.device.tensor import observer
from cstorch.tracing import nest
from cstorch.tracing.attribute_reads import INTERNAL, MISSING, AttributeReads, is_compared, look_up
from cstorch.tracing.surroundings import Holder, Surroundings

_LIBRARIES = ("torch", "lightning", "pytorch_lightning", "torchmetrics")


@dataclass(frozen=True)
class ModuleGuards:
    """What a program expects of modules; asked again only when an attribute of some module was assigned.

    Attributes:
        modes: Modules with the training mode that they had.
        read: Modules, names and values of attributes that the step reads.
        carried: Modules, names and values of attributes that the step assigns, and that hold its state.
    """

    modes: list[tuple[nn.Module, bool]]
    read: list[tuple[nn.Module, str, Any]]
    carried: list[tuple[nn.Module, str, Any]]

    def match(self) -> bool:
        """Whether all is as expected; a tensor of the same shape in a place of state is taken over."""
        return self.mismatch() is None

    def mismatch(self) -> str | None:
        """What is not as expected, in words."""
        for module, training in self.modes:
            if module.training is not training:
                return f"{type(module).__name__} is now in {'eval' if training else 'training'} mode"
        for module, name, value in self.read:
            now = look_up(module, name)
            if now is value or (is_compared(value) and type(now) is type(value) and now == value):
                continue
            was, is_now = (repr(v) if is_compared(v) else f"a {type(v).__name__}" for v in (value, now))
            if was == is_now:
                is_now = "another one"
            return f"{type(module).__name__}.{name} was {was} and is {is_now} now"
        for module, name, value in self.carried:
            now = look_up(module, name)
            if now is not value and not _take_over(value, now):
                return f"{type(module).__name__}.{name}, which the step carries over, was given something else"
            if now is not value:
                _ModuleAttributes(module)[name] = value
        return None

    def in_words(self) -> list[str]:
        """What is expected, in words."""
        modes = Counter(training for _, training in self.modes)
        said = [f"{count} modules are in {'training' if mode else 'eval'} mode" for mode, count in modes.items()]
        for module, name, value in self.read:
            is_now = repr(value) if is_compared(value) else f"the same {type(value).__name__}"
            said.append(f"{type(module).__name__}.{name} is {is_now}")
        return said


def _take_over(place: Any, value: Any) -> bool:
    """Copy `value` into the tensors of `place`, when it has their structure and shapes."""
    places, values = nest.leaves(place), nest.leaves(value)
    if type(place) is not type(value) and not isinstance(place, torch.Tensor):
        return False
    if len(places) != len(values):
        return False
    for old, new in zip(places, values, strict=True):
        if isinstance(old, torch.Tensor):
            if not isinstance(new, torch.Tensor) or new.shape != old.shape or new.dtype != old.dtype:
                return False
            if isinstance(new, CsxTensor) and new.is_handle:
                return False
        elif not is_compared(old) or old != new:
            return False
    with torch.no_grad():
        for old, new in zip(places, values, strict=True):
            if isinstance(old, torch.Tensor) and old is not new:
                old.copy_(new)
    return True


class _ModuleAttributes:
    """A module's buffers and attributes as a mapping."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        kind = type(module)
        above = {base.__module__.partition(".")[0] for base in kind.__mro__ if base not in (nn.Module, object)}
        self.hides_private = bool(above & set(_LIBRARIES))
        self.anew: set[str] = set()
        self.is_library = kind.__module__.partition(".")[0] in _LIBRARIES

    def items(self) -> dict[str, Any]:
        found = {name: v for name, v in self.module.__dict__.items() if name not in INTERNAL}
        if self.hides_private:
            shown = {name for name, v in found.items() if name[0] != "_" or isinstance(v, torch.Tensor)} | self.anew
            found = {name: v for name, v in found.items() if name in shown}
        return {**found, **self.module._buffers}

    def __setitem__(self, name: str, value: Any) -> None:
        observer.watched.add(name)
        observer.attribute_changes += 1
        if name in self.module._buffers:
            self.module._buffers[name] = value
        else:
            self.module.__dict__[name] = value

    def __delitem__(self, name: str) -> None:
        self.module.__dict__.pop(name, None)


class _ModuleHolder(Holder):
    thing: _ModuleAttributes

    def items(self) -> dict[Any, Any]:
        return self.thing.items()


def _shape_only(value: Any) -> Any:
    return torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, torch.Tensor) else value


class ModuleWatch:
    """The modules that one trace meets.

    Args:
        roots: Modules known beforehand, for example those that `cstorch.compile` was given.
    """

    def __init__(self, roots: list[nn.Module]) -> None:
        self._seen: dict[int, tuple[nn.Module, bool, Holder]] = {}
        self._reads = AttributeReads(self.meet)
        self.surroundings: Surroundings | None = None
        self.carried: list[tuple[nn.Module, str, Any]] = []
        self.absent: list[tuple[nn.Module, str, Any]] = []
        self._roots = roots

    def look_around(self, surroundings: Surroundings) -> None:
        """Follow what is reachable from the modules too; called once, before the trace."""
        self.surroundings = surroundings
        for root in self._roots:
            self.meet_all(root)

    def __enter__(self) -> ModuleWatch:
        self._hook = register_module_forward_pre_hook(self._before_forward)
        self._reads.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._reads.__exit__(*error)
        self._hook.remove()

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
            with outside_modes(), torch._C.DisableTorchFunction():  # as in eager, once: only shapes are needed
                module.initialize_parameters(*(_shape_only(a) for a in args))
        self.meet(module)

    def meet_all(self, root: nn.Module) -> None:
        """Note a module and those in it."""
        for module in root.modules():
            self.meet(module)

    def meet(self, module: nn.Module) -> None:
        """Note a module as it is now."""
        if id(module) in self._seen:
            return
        attributes = _ModuleAttributes(module)
        holder = _ModuleHolder(type(module).__name__, attributes, ".{}", attributes.is_library, owner=module)
        holder.anew = attributes.anew
        self._seen[id(module)] = module, module.training, holder
        if self.surroundings is not None and not attributes.is_library:
            self.surroundings.visit_module(module, INTERNAL)

    @property
    def holders(self) -> list[Holder]:
        """The attributes of the modules met, as they were when met."""
        return [holder for _, _, holder in self._seen.values()]

    def guards(self) -> ModuleGuards:
        """What later calls must find."""
        modes = [(module, training) for module, training, _ in self._seen.values()]
        observer.watched.add("training")
        places = {(id(module), name) for module, name, _ in [*self.carried, *self.absent]}
        read = [entry for entry in self._reads.guards() if (id(entry[0]), entry[1]) not in places]
        observer.watched.update(name for _, name, _ in self.absent + self.carried)
        return ModuleGuards(modes, read + self.absent, self.carried)

    def was_read(self, holder: Holder, name: str, value: Any) -> bool:
        """Whether the step has read an attribute while it was `value`."""
        return self._reads.have_read(holder.thing.module, name, value)

    def carries(self, holder: Holder, name: str, before: Any, value: Any) -> None:
        """The step leaves its state in an attribute: in `value`, which was there, or which is new."""
        module = holder.thing.module
        if value is before:
            self.carried.append((module, name, value))
        else:
            self.absent.append((module, name, None if before is MISSING else before))
