"""Creates an optimizer's state before its first traced step, with the values that it starts from.

The optimizer's step is recorded once into a graph of its own (a probe). Each new state tensor is followed back to
the operation that made it, and only that is evaluated. Where the first step does something else than the steps
after it (SGD with dampening; state that starts as a gradient), no state is made: the first step is a program of its
own, which leaves the state that it creates.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from cstorch._torch_private.tracing import compiling, mutated_arguments, outside_modes, raw_optimizer_step
from cstorch.device import CSX, CsxTensor, lazy
from cstorch.tracing.optimizer_functions import OptimizerFunctions, tensor_extremes
from cstorch.tracing.recorder import Recorder

aten = torch.ops.aten
_INVISIBLE = (aten.lift_fresh.default, aten.detach.default, aten.alias.default)


class Snapshot:
    """What belongs to an optimizer, to put it back after a probe."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._attributes = dict(vars(optimizer))
        self._groups = [(group, dict(group)) for group in optimizer.param_groups]
        self._state = {p: (s, dict(s)) for p, s in optimizer.state.items()}

    def restore(self) -> None:
        """Put everything back as it was."""
        vars(self.optimizer).clear()
        vars(self.optimizer).update(self._attributes)
        for table, before in [*self._groups, *self._state.values()]:
            table.clear()
            table.update(before)
        for parameter in self.optimizer.state.keys() - self._state.keys():
            del self.optimizer.state[parameter]


def create_state(recorder: Recorder, optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter with a gradient its state, where that can be made before the step runs."""
    parameters = [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    missing = [p for p in parameters if not optimizer.state.get(p)]
    if type(optimizer) is torch.optim.SGD:
        _create_momentum(optimizer)
    elif missing:
        _create_by_probe(recorder, optimizer)


def is_of_torch(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `optimizer` is one of torch.optim, and no subclass but those that only have other defaults."""
    module = type(optimizer).__module__
    return module in ("torch.optim", "cstorch.optim.of_torch") or module.startswith("torch.optim.")


def _create_momentum(optimizer: torch.optim.SGD) -> None:
    """SGD's buffer starts as the first gradient; from zero the same follows when nothing is dampened."""
    for group in optimizer.param_groups:
        if group["momentum"] == 0 or group["dampening"] != 0:
            continue
        for p in group["params"]:
            if p.grad is not None and optimizer.state[p].get("momentum_buffer") is None:
                with outside_modes(), lazy.recording():
                    made = torch.empty_strided(p.shape, p.stride(), dtype=p.dtype, device=CSX)
                    optimizer.state[p]["momentum_buffer"] = made.zero_()


def _create_by_probe(recorder: Recorder, optimizer: torch.optim.Optimizer) -> None:
    before = Snapshot(optimizer)
    probe = _Probe(recorder)
    watched = _WatchedState({p: _FirstValues(s) for p, s in optimizer.state.items()})
    try:
        optimizer.state = watched
        probe.run(optimizer)
        initial = {p: s.first for p, s in watched.items()}
        final = _numbers(watched)
    finally:
        before.restore()
    try:
        with outside_modes(), lazy.recording():
            made = {p: {key: probe.initial(value) for key, value in s.items()} for p, s in initial.items()}
    except _DependsOnStepError:
        return  # the first step makes it
    for parameter, state in made.items():
        optimizer.state[parameter].update({k: v for k, v in state.items() if k not in optimizer.state[parameter]})
    if is_of_torch(optimizer):
        return  # known to start as it goes on
    created = Snapshot(optimizer)
    steady = _Probe(recorder)
    try:
        steady.run(optimizer)
        same = steady.operations() == probe.operations() and _numbers(optimizer.state) == final
    finally:
        created.restore()
    if not same:
        before.restore()


def _numbers(state: Any) -> dict[tuple[int, str], Any]:
    return {
        (id(p), key): value for p, s in state.items() for key, value in s.items() if not isinstance(value, torch.Tensor)
    }


class _FirstValues(dict[str, Any]):
    """A parameter's state that remembers what each entry was first set to."""

    def __init__(self, known: dict[str, Any]) -> None:
        super().__init__(known)
        self.first: dict[str, Any] = {}

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self:
            self.first.setdefault(key, value)
        super().__setitem__(key, value)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value


class _WatchedState(defaultdict[Any, Any]):
    """An optimizer's state with `_FirstValues` for every parameter."""

    def __init__(self, known: dict[Any, _FirstValues]) -> None:
        super().__init__(lambda: _FirstValues({}), known)

    def __setitem__(self, parameter: Any, value: Any) -> None:
        if not isinstance(value, _FirstValues):
            made = _FirstValues({})
            made.update(value)
            value = made
        super().__setitem__(parameter, value)


class _DependsOnStepError(Exception):
    """A value is known only when the step runs."""


class _Probe(Recorder):
    """Records one optimizer's step beside the trace, to learn how it begins.

    Args:
        parent: The recorder of the trace.
    """

    def __init__(self, parent: Recorder) -> None:
        super().__init__(parent.leaves, parent.scalars.args, parent=parent)
        self._made: dict[int, fx.Node] = {}
        self._filled: dict[int, fx.Node] = {}
        self._begun: dict[int, torch.Tensor] = {}
        self._log: list[tuple[Any, Any]] = []
        self._creating: set[Any] = set()

    def run(self, optimizer: torch.optim.Optimizer) -> None:
        """Record the step of `optimizer`."""
        for group in optimizer.param_groups:
            group.update(dict.fromkeys(group.keys() & {"foreach", "fused"}, False))
        functions = OptimizerFunctions(self, optimizer, lenient=is_of_torch(optimizer))
        with outside_modes(), self, compiling(), torch.no_grad(), functions, tensor_extremes(optimizer):
            step = raw_optimizer_step(optimizer)
            closure = inspect.signature(step).parameters.get("closure")
            step(optimizer, *(() if closure is None or closure.default is None else (lambda: None,)))

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record `func`, noting what makes a tensor and what first changes it."""
        changed = [t for t in mutated_arguments(func, args, kwargs) if isinstance(t, torch.Tensor)]
        for t in changed:
            if not isinstance(t, CsxTensor) and t in self._born and id(t) not in self._begun:
                self._begun[id(t)] = t.clone()
                self._keep.append(t)
        out = super().dispatch(func, args, kwargs)
        for t in pytree.tree_leaves(out):
            if isinstance(t, torch.Tensor) and not any(t is c for c in changed):
                self._keep.append(t)
                node = t._node if isinstance(t, CsxTensor) and t._recorder is self else None
                if node is not None:
                    self._made[id(t)] = node
                self._note(func, node or id(t))
                break
        else:
            for t in changed:
                if id(t) in self._made and "empty" in str(self._made[id(t)].target):
                    self._filled.setdefault(id(t), t._node)  # type: ignore[attr-defined]
            self._note(func, changed[0]._node if changed and isinstance(changed[0], CsxTensor) else None)
        return out

    def _note(self, func: Any, what: Any) -> None:
        if func not in _INVISIBLE:
            self._log.append((func, what))

    def operations(self) -> list[Any]:
        """What the step does, without what only made its state."""
        return [func for func, what in self._log if what not in self._creating]

    def initial(self, value: Any) -> Any:
        """What a state entry was when it was made.

        Raises:
            _DependsOnStepError: it starts from what only a running step has.
        """
        if not isinstance(value, torch.Tensor):
            return value
        if not isinstance(value, CsxTensor):
            self._creating.add(id(value))
            return self._begun.get(id(value), value).clone()
        if id(value) not in self._made:
            raise _DependsOnStepError
        made, fill = self._made[id(value)], self._filled.get(id(value))
        contents = self._evaluate(made)
        if fill is not None:
            self._creating.add(fill)
            contents = self._call(fill, contents, *fill.args[1:])
        contents = contents.to(CSX)
        return contents.clone() if contents._is_view() or isinstance(contents, torch.nn.Parameter) else contents

    def _evaluate(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            source = next(entry.source for entry in self.inputs if entry.node is node)
            if not isinstance(source, CsxTensor) or source.is_handle or not self._is_untouched(source):
                raise _DependsOnStepError
            return source.detach()
        self._creating.add(node)
        target = str(getattr(node.target, "_opname", ""))
        if target.endswith("_like") or target.startswith("new_"):  # of its first argument it takes the layout only
            like = node.args[0].meta["val"]  # type: ignore[union-attr]
            layout = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=CSX)
            return self._call(node, layout, *node.args[1:])
        return self._call(node, *node.args)

    def _call(self, node: fx.Node, *args: Any) -> Any:
        def contents(value: Any) -> Any:
            return value if isinstance(value, torch.Tensor) else fx.node.map_arg(value, self._evaluate)

        assert callable(node.target)
        return node.target(*map(contents, args), **fx.node.map_arg(dict(node.kwargs), self._evaluate))

    def _is_untouched(self, source: CsxTensor) -> bool:
        """Whether the step has not changed `source` before it came to the optimizer."""
        return source._node is None or source._node.op == "placeholder"
