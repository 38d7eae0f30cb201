"""Lets an unmodified torch optimizer step inside a trace.

Its state is there before its first traced step (optimizer_state). During the step the numbers of its param_groups,
its own counters and attributes are host scalars, so that a scheduler's changes reach every later run (host_tables);
tensors that it reads as numbers stay tensors (optimizer_functions).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from cstorch._torch_private.tracing import compiling, outside_modes
from cstorch.device import CsxTensor
from cstorch.errors import ClosureNotCalledError, OptimizerError, StateError
from cstorch.tracing.host_tables import HostTables
from cstorch.tracing.optimizer_binding import Birth, OptimizerBinding
from cstorch.tracing.optimizer_functions import OptimizerFunctions, tensor_extremes
from cstorch.tracing.optimizer_state import Snapshot, create_state, is_of_torch
from cstorch.tracing.recorder import Recorder
from cstorch.where import user_line

REFUSED = {
    "LBFGS": "it evaluates the model several times in a step and decides on the values how often",
    "SparseAdam": "it works on sparse gradients, whose sizes depend on the batch",
}
_STRUCTURAL = ("foreach", "fused", "capturable")  # ways to compute the same: the compiler decides
_BRANCHING = (torch.optim.ASGD, torch.optim.RAdam)  # read values in Python unless capturable


class _Exposing:
    """Stands for an attribute of all optimizers that holds numbers: whoever reads it gets host scalars."""

    def __init__(self, name: str, meet: Callable[[torch.optim.Optimizer], None]) -> None:
        self._name, self._meet = name, meet

    def __get__(self, optimizer: Any, owner: Any = None) -> Any:
        if optimizer is None:
            return self
        if self._name not in vars(optimizer):
            raise AttributeError(self._name)
        self._meet(optimizer)
        return vars(optimizer)[self._name]

    def __set__(self, optimizer: Any, value: Any) -> None:
        vars(optimizer)[self._name] = value


class _Called:
    """Stands for a closure that was called before the optimizer asks for it."""

    def __init__(self, loss: Any) -> None:
        self._loss = loss
        self.is_used = False

    def __call__(self) -> Any:
        self.is_used = True
        return self._loss


class OptimizerSteps:
    """Hooks on every optimizer of one trace.

    Args:
        recorder: The trace.

    Attributes:
        tables: The numbers of the host that the trace reads and writes.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.tables = HostTables(recorder)
        self._met: dict[int, torch.optim.Optimizer] = {}
        self._known: dict[int, dict[tuple[int, str], Any]] = {}  # of optimizers that have stepped: state at the start
        self._given: dict[int, frozenset[tuple[int, str]]] = {}  # and what they had before any of it was made
        self._levels: list[tuple[torch.optim.Optimizer, contextlib.ExitStack, dict[tuple[int, str], Any], Any]] = []
        self._probed: list[Snapshot] = []  # the optimizer whose state is made, and those that step within its step
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> OptimizerSteps:
        for hook in (
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ):
            self._stack.callback(hook.remove)
        for name, meet in (("param_groups", self.meet), ("defaults", self._meet_defaults)):
            setattr(torch.optim.Optimizer, name, _Exposing(name, meet))
            self._stack.callback(delattr, torch.optim.Optimizer, name)
        return self

    def __exit__(self, *error: object) -> None:
        while self._levels:
            self._levels.pop()[1].close()
        if error[0] is None:
            self.tables.conceal(by_user=True)
        else:
            self.tables.restore()
            for optimizer in self._met.values():
                self._forget(optimizer)
        self._stack.close()

    def meet(self, optimizer: torch.optim.Optimizer) -> None:
        """From now on the numbers in the param_groups of `optimizer` are host scalars wherever the step reads them."""
        if not self.tables.paused:
            self._met[id(optimizer)] = optimizer
            for i, group in enumerate(vars(optimizer)["param_groups"]):
                self.tables.expose(group, f"param_groups[{i}]", tensors=True)

    def _meet_defaults(self, optimizer: torch.optim.Optimizer) -> None:
        table = vars(optimizer)["defaults"]
        self.tables.expose(table, f"{type(optimizer).__name__}.defaults")

    def _expose(self, optimizer: torch.optim.Optimizer) -> None:
        name = type(optimizer).__name__
        self.meet(optimizer)
        for i, group in enumerate(vars(optimizer)["param_groups"]):
            self.tables.expose(group, f"param_groups[{i}]", tensors=True)
            self.tables.guard_flags(group, _STRUCTURAL, owner=f" of {name}")
        if not is_of_torch(optimizer):
            self.tables.expose(vars(optimizer), name)
            self.tables.guard_flags(vars(optimizer))
        self.tables.expose_counters(optimizer.state.values(), f"{name}.state[...]")
        for _, _, value in _entries(optimizer):
            if isinstance(value, torch.Tensor) and not isinstance(value, CsxTensor):
                self.recorder.host_input(value)  # what is computed from it on the host alone would stand still

    # -- the step ----------------------------------------------------------------------------------------

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        name = type(optimizer).__name__
        if name in REFUSED:
            raise OptimizerError(
                f"torch.optim.{name} cannot be part of a traced step (at {user_line()}): {REFUSED[name]}. "
                "Use Adam, AdamW or SGD, or train this model with the CPU backend."
            )
        if self.tables.paused:
            if all(optimizer is not known.optimizer for known in self._probed):
                create_state(self.recorder, optimizer)
                self._probed.append(Snapshot(optimizer))
            return args, kwargs
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is not None:  # run it first: gradients must be there before the state can be made
            with torch.enable_grad():
                closure = _Called(closure())
            args, kwargs = (args[0], closure), {}
        self.tables.conceal(by_user=not self._levels)
        self._given.setdefault(id(optimizer), frozenset(_values(optimizer)))
        self._make_state(optimizer)
        self._expose(optimizer)
        self._known.setdefault(id(optimizer), _values(optimizer))
        level = contextlib.ExitStack()
        level.callback(setattr, self.recorder.scalars, "in_optimizer", self.recorder.scalars.in_optimizer)
        self.recorder.scalars.in_optimizer = True
        for group in vars(optimizer)["param_groups"]:
            ways = {key: group[key] for key in _STRUCTURAL if key in group}
            group.update({key: key == "capturable" and isinstance(optimizer, _BRANCHING) for key in ways})
            level.callback(group.update, ways)
        level.enter_context(compiling())
        level.enter_context(tensor_extremes(optimizer))
        level.enter_context(OptimizerFunctions(self.recorder, optimizer))
        self._levels.append((optimizer, level, _values(optimizer), closure))
        return args, kwargs

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.tables.paused:
            return
        _, level, before, closure = self._levels.pop()
        level.close()
        if closure is not None and not closure.is_used:
            raise ClosureNotCalledError(
                f"{type(optimizer).__name__}.step() was given a closure at {user_line()} and did not call it, so "
                "nothing would compute its gradients. Call the closure in step(), or hand it on: super().step(closure)."
            )
        self.recorder.gradients.consume(optimizer)
        self._write_back(optimizer, before)
        self.tables.conceal(by_user=False)
        if self._levels:
            self._expose(self._levels[-1][0])

    def _make_state(self, optimizer: torch.optim.Optimizer) -> None:
        self.tables.paused = True
        self._probed = [Snapshot(optimizer)]
        try:
            create_state(self.recorder, optimizer)
        finally:
            for known in self._probed[1:]:
                known.restore()
            self.tables.paused = False
        for parameter, key, value in _entries(optimizer):
            if isinstance(value, torch.Tensor) and not isinstance(value, CsxTensor) and value.dim() > 0:
                with outside_modes():  # of a checkpoint that was loaded before the model moved
                    optimizer.state[parameter][key] = CsxTensor(value.detach().clone())

    def _write_back(self, optimizer: torch.optim.Optimizer, before: dict[tuple[int, str], Any]) -> None:
        """State that the step replaced rather than changed is copied back into the tensor that was there."""
        for parameter, key, value in _entries(optimizer):
            old = before.get((id(parameter), key))
            if value is old or not isinstance(old, torch.Tensor):
                continue
            fits = isinstance(value, torch.Tensor) and value.shape == old.shape and value.dtype == old.dtype
            if not (fits and self.recorder.follows(value)):
                raise StateError(
                    f"{type(optimizer).__name__}.step() replaces its state {key!r}, a tensor {tuple(old.shape)} "
                    f"{old.dtype}, by another value ({type(value).__name__}), which a replay cannot repeat. Keep such "
                    "state in a tensor that the step changes in place, for example step.add_(1) on a 0-d tensor."
                )
            with torch.no_grad():
                old.copy_(value)
            optimizer.state[parameter][key] = old

    # -- the end -----------------------------------------------------------------------------------------

    def bindings(self, stand_in: Any) -> list[OptimizerBinding]:
        """Bind the program to the optimizers that it has met; state that it creates leaves them until it runs.

        Args:
            stand_in: Makes of a value of the step what stands for it in a program.
        """
        self.tables.conceal(by_user=True)
        bindings = []
        for optimizer in self._met.values():
            births = [Birth(p, key, stand_in(value)) for p, key, value in self._created(optimizer)]
            late = self._late(optimizer)
            self._forget(optimizer)
            bindings.append(OptimizerBinding(optimizer, births, id(optimizer) in self._known, late))
        return bindings

    def _created(self, optimizer: torch.optim.Optimizer) -> list[tuple[Any, str, Any]]:
        known = self._known.get(id(optimizer))
        return [] if known is None else [e for e in _entries(optimizer) if (id(e[0]), e[1]) not in known]

    def _late(self, optimizer: torch.optim.Optimizer) -> frozenset[tuple[int, str]]:
        """Which state tensors were not there before the step."""
        given = self._given.get(id(optimizer), frozenset())
        made = {(id(p), key) for p, key, value in _entries(optimizer) if isinstance(value, torch.Tensor)}
        return frozenset(made - given)

    def _forget(self, optimizer: torch.optim.Optimizer) -> None:
        """Take out what the trace has put into the state of `optimizer`."""
        for parameter, key, _ in self._created(optimizer):
            del optimizer.state[parameter][key]
            if not optimizer.state[parameter]:
                del optimizer.state[parameter]
        for parameter, key, _ in _entries(optimizer):
            known = self._known.get(id(optimizer), {}).get((id(parameter), key))
            if isinstance(known, torch.Tensor):
                optimizer.state[parameter][key] = known


def _entries(optimizer: torch.optim.Optimizer) -> list[tuple[Any, str, Any]]:
    return [(p, key, value) for p, state in optimizer.state.items() for key, value in state.items()]


def _values(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], Any]:
    return {(id(p), key): value for p, key, value in _entries(optimizer)}
