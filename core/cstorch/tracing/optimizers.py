"""Lets an unmodified torch optimizer step inside a trace.

Before an optimizer's first traced step its state is created: the step is recorded once into a graph of its own,
each new state tensor is followed back to the operation that made it, and only that is evaluated. During the step
the numbers of its param_groups are host scalars, so a scheduler's changes reach every later run.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from cstorch._torch_private.tracing import compiling, outside_modes, raw_optimizer_step
from cstorch.device import CSX, CsxTensor, lazy
from cstorch.errors import OptimizerError, StateError
from cstorch.tracing.recorder import Recorder
from cstorch.tracing.scalars import plain_number

REFUSED = {
    "LBFGS": "it evaluates the model several times in a step and decides on the values how often",
    "SparseAdam": "it works on sparse gradients, whose sizes depend on the batch",
}
_STRUCTURAL = ("foreach", "fused", "capturable")  # ways to compute the same: the compiler decides


class OptimizerSteps:
    """Hooks on every optimizer step of one trace.

    Args:
        recorder: The trace.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._restore: list[Callable[[], None]] = []
        self._exposed: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = []
        self._hooks: list[Any] = []

    def __enter__(self) -> OptimizerSteps:
        self._hooks = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._undo()
        self._conceal()

    def expose(self, optimizers: list[torch.optim.Optimizer]) -> None:
        """Until the trace ends, the numbers of these optimizers are host scalars wherever the step reads them."""
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                entries = self.recorder.scalars.group_entries(group)
                self._exposed.append((group, {key: group[key] for key in entries}, entries))
                group.update(entries)

    def _conceal(self) -> None:
        for group, plain, entries in self._exposed:
            for key, value in plain.items():
                if group[key] is entries[key]:
                    group[key] = value
                    continue
                group[key] = plain_number(group[key])
                warnings.warn(
                    f"the traced step assigns {group[key]!r} to param_groups[...][{key!r}]. The assignment ran once, "
                    "while the step was traced, and will not run again. Assign it outside the step, or call a "
                    "scheduler's step() in it.",
                    stacklevel=2,
                )
        self._exposed.clear()

    def _undo(self) -> None:
        while self._restore:
            self._restore.pop()()

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        name = type(optimizer).__name__
        if name in REFUSED:
            raise OptimizerError(
                f"torch.optim.{name} cannot be part of a traced step: {REFUSED[name]}. "
                "Use Adam, AdamW or SGD, or train this model with the CPU backend."
            )
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is not None:  # run it first: gradients must be there before the state can be made
            with torch.enable_grad():
                loss = closure()
            args, kwargs = (args[0], lambda: loss), {}
        self._make_state(optimizer)
        self._as_host_scalars(optimizer)
        stack = contextlib.ExitStack()
        stack.enter_context(compiling())
        self._restore.append(stack.close)
        self._state_before = _tensors_of(optimizer)
        return args, kwargs

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._undo()
        self.recorder.gradients.consume(optimizer)
        self._write_back(optimizer)

    def _as_host_scalars(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            entries = self.recorder.scalars.group_entries(group)
            for key in _STRUCTURAL:
                if key in group:
                    entries[key] = False
            plain = {key: group[key] for key in entries}
            group.update(entries)
            self._restore.append(lambda group=group, plain=plain: group.update(plain))  # type: ignore[misc]

    # -- state -------------------------------------------------------------------------------------------

    def _make_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Create the state that the optimizer would create in its first step, with initial values."""
        parameters = [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        if all(optimizer.state.get(p) for p in parameters) or _is_plain_sgd(optimizer):
            _to_device(optimizer)
            return
        known = {p: dict(s) for p, s in optimizer.state.items()}
        plain = [dict(g) for g in optimizer.param_groups]
        probe = Recorder(self.recorder.leaves, self.recorder.scalars.args, parent=self.recorder)
        try:
            for group in optimizer.param_groups:
                group.update({key: plain_number(value) for key, value in group.items() if key != "params"})
                if "capturable" in group:
                    group["capturable"] = True  # makes step counters on the device of the parameter
                for key in ("foreach", "fused"):
                    if key in group:
                        group[key] = False
            with outside_modes(), probe, compiling(), torch.no_grad():
                raw_optimizer_step(optimizer)(optimizer)
            with outside_modes():
                initial = self._initial_values(optimizer, known, probe)
        finally:
            for group, before in zip(optimizer.param_groups, plain, strict=True):
                group.update(before)
            made = {p: dict(s) for p, s in optimizer.state.items()}
            optimizer.state.clear()
            optimizer.state.update(known)
        for parameter, state in made.items():
            target = optimizer.state[parameter]
            for key, value in state.items():
                if key in target:
                    continue
                target[key] = initial.get((parameter, key), value)
        _to_device(optimizer)

    def _initial_values(
        self, optimizer: torch.optim.Optimizer, known: dict[Any, dict[str, Any]], probe: Recorder
    ) -> dict[tuple[Any, str], Any]:
        found: dict[tuple[Any, str], Any] = {}
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                if key in known.get(parameter, {}) or not isinstance(value, CsxTensor):
                    continue
                if _is_sgd_buffer(optimizer, key):
                    with lazy.recording():
                        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=CSX)
                        found[parameter, key] = made.zero_()
                    continue
                try:
                    with lazy.recording():
                        found[parameter, key] = _evaluate_creation(value._node, probe).to(CSX)
                except _DependsOnStepError as error:
                    raise OptimizerError(
                        f"the state {key!r} of {type(optimizer).__name__} starts from values of the first step "
                        f"({error}), so it cannot be created before the program is compiled. Create the "
                        "optimizer's state before training, for example with zeros, or use an optimizer of torch.optim."
                    ) from None
        return found

    def _write_back(self, optimizer: torch.optim.Optimizer) -> None:
        """State that the step replaced rather than changed is copied back into the tensor that was there."""
        for parameter, key, value in _entries(optimizer):
            before = self._state_before.get((id(parameter), key))
            if value is before or not isinstance(value, (torch.Tensor, int, float)):
                continue
            if isinstance(value, CsxTensor) and isinstance(before, CsxTensor) and value.shape == before.shape:
                with torch.no_grad():
                    before.copy_(value)
                optimizer.state[parameter][key] = before
            elif value != before:
                raise StateError(
                    f"{type(optimizer).__name__}.step() replaces its state {key!r} ({before!r}) by another value "
                    f"({type(value).__name__}), which a replay cannot repeat. Keep such state in a tensor "
                    "that the step changes in place, for example step.add_(1) on a 0-d tensor."
                )


def optimizers_of(step: Callable[..., Any], leaves: list[Any]) -> list[torch.optim.Optimizer]:
    """The optimizers among a step's arguments and the variables that its code refers to."""
    found: list[Any] = list(leaves)
    function = inspect.unwrap(step)
    function = getattr(function, "__func__", function)
    if inspect.isfunction(function):
        names = inspect.getclosurevars(function)
        found += [*names.nonlocals.values(), *names.globals.values()]
    optimizers: dict[int, torch.optim.Optimizer] = {}
    for value in found:
        if isinstance(value, torch.optim.Optimizer):
            optimizers[id(value)] = value
    return list(optimizers.values())


def _entries(optimizer: torch.optim.Optimizer) -> list[tuple[Any, str, Any]]:
    return [(p, key, value) for p, state in optimizer.state.items() for key, value in state.items()]


def _tensors_of(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], Any]:
    return {(id(p), key): value for p, key, value in _entries(optimizer)}


def _is_plain_sgd(optimizer: torch.optim.Optimizer) -> bool:
    return type(optimizer) is torch.optim.SGD and all(g["momentum"] == 0 for g in optimizer.param_groups)


def _is_sgd_buffer(optimizer: torch.optim.Optimizer, key: str) -> bool:
    """SGD starts its buffer as the first gradient; from zero the same follows when nothing is dampened."""
    if not isinstance(optimizer, torch.optim.SGD) or key != "momentum_buffer":
        return False
    for group in optimizer.param_groups:
        if group["momentum"] != 0 and group["dampening"] != 0:
            raise OptimizerError(
                f"SGD with dampening={group['dampening']} takes another path in its first step than in all "
                "later ones, which one program cannot do. Use dampening=0."
            )
    return True


def _to_device(optimizer: torch.optim.Optimizer) -> None:
    """State on the host (step counters, a loaded checkpoint) moves to csx, or it would stand still."""
    for parameter, key, value in _entries(optimizer):
        if isinstance(value, torch.Tensor) and not isinstance(value, CsxTensor) and value.device.type == "cpu":
            with outside_modes():
                optimizer.state[parameter][key] = CsxTensor(value.detach().clone())


class _DependsOnStepError(Exception):
    """A creation depends on a value that only a running step has."""


def _creator(node: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """The node that made a tensor, and the first operation that filled it when it was made empty."""
    chain = [node]
    while _is_in_place(chain[-1]):
        chain.append(chain[-1].args[0])  # type: ignore[arg-type]
    made = chain[-1]
    empty = made.op == "call_function" and "empty" in str(made.target)
    return made, chain[-2] if empty and len(chain) > 1 else None


def _is_in_place(node: fx.Node) -> bool:
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    arguments = node.target._schema.arguments
    return bool(arguments and arguments[0].alias_info is not None and arguments[0].alias_info.is_write)


def _evaluate_creation(node: fx.Node, probe: Recorder) -> torch.Tensor:
    sources = {entry.node: entry.source for entry in probe.inputs}

    def evaluate(item: fx.Node) -> Any:
        if item.op == "placeholder":
            source = sources[item]
            if isinstance(source, CsxTensor) and not source.is_handle:
                return source
            raise _DependsOnStepError("it reads a gradient or the batch")
        made, fill = (item, None) if item is not node else _creator(item)
        value = made.target(*map_args(made.args), **map_args(made.kwargs))  # type: ignore[operator]
        if fill is not None:
            value = fill.target(value, *map_args(fill.args[1:]), **map_args(fill.kwargs))  # type: ignore[operator]
        return value

    def map_args(value: Any) -> Any:
        return fx.node.map_arg(value, evaluate)

    if node.op == "placeholder":
        return evaluate(node)  # type: ignore[no-any-return]
    created, _ = _creator(node)
    if created.op == "placeholder":
        return evaluate(created)  # type: ignore[no-any-return]
    return evaluate(node)  # type: ignore[no-any-return]
