"""`cstorch.trace`: a call of a step finds the program for its arguments, or makes one, and runs it.

One call, read from top to bottom: `TracedStep.__call__` takes the arguments apart, looks the program up,
traces and compiles if there is none, and `BoundProgram.run` feeds the executable and deals with what comes out.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import types
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from cstorch._torch_private.autocast import no_autocast
from cstorch._torch_private.tracing import any_autocast
from cstorch.core.compile import hooks_called
from cstorch.device import CsxTensor, to_host
from cstorch.device.autocast import forget_casts
from cstorch.device.constant import constant
from cstorch.device.tensor import observer
from cstorch.errors import ProgramLimitError, TraceError
from cstorch.tracing import nest
from cstorch.tracing.context import context
from cstorch.tracing.data_parallel import first_parts, parts_of
from cstorch.tracing.flags import flag_difference, flags
from cstorch.tracing.gradients import GradientKeeper
from cstorch.tracing.program import Executable, Output, Program, ScalarSlot
from cstorch.tracing.retrace import compare
from cstorch.tracing.scalars import Number
from cstorch.tracing.trace import trace as trace_program

logger = logging.getLogger("cstorch.trace")

PROGRAM_LIMIT = 8
"""So many programs a step function may become before it counts as one that never settles."""


class BoundProgram:
    """A program with its executable and the buffers that feed it."""

    def __init__(self, program: Program, executable: Executable | None) -> None:
        self.program = program
        self.executable = executable
        self._on_csx = [isinstance(t, CsxTensor) for t in program.state]
        # What memory others are given is not noticed, unless they are handed over as they are.
        self._settled = all(isinstance(t, CsxTensor) or _is_plain(t) for t in program.state)
        self._hosts: list[Any] = []
        self._hosts_seen = -1
        self._buffers = [torch.zeros((), dtype=dtype) for dtype in program.scalar_dtypes]
        self._views = [buffer.numpy() for buffer in self._buffers]
        self._flags_seen = self._attributes_seen = -1
        self._makes_state = program.is_first_step
        self._first: tuple[Number, ...] | None = program.first_scalars
        self._fed: tuple[Number, ...] | None = None
        self._slots: tuple[Number, ...] = ()
        self._gradients = GradientKeeper(program.gradients)

    def matches(self, numbers: list[Number]) -> bool:
        """Whether the program is right for a call now."""
        if self._flags_seen != observer.flag_changes:
            if not self.program.flags_match():
                return False
            self._flags_seen = observer.flag_changes
        if self._attributes_seen != observer.attribute_changes:
            if not self.program.modules.match():
                return False
            self._attributes_seen = observer.attribute_changes
        return self.program.matches(numbers)

    def inputs(self, leaves: list[torch.Tensor], numbers: list[Number]) -> list[Any]:
        """The tensors for one run, in the order of the graph's placeholders."""
        program = self.program
        if self._hosts_seen != observer.host_changes or not self._settled:
            self._gather()
        inputs = self._hosts.copy()
        for position in program.leaves:
            leaf = leaves[position]
            if type(leaf) is not torch.Tensor:
                leaf = _with_contents(leaf)
            inputs.append(leaf if leaf.is_contiguous() else leaf.contiguous())
        if self._first is None:
            values = program.scalars(numbers)
        else:
            values, self._first = self._first, None
        if values != self._fed:
            for view, value in zip(self._views, values, strict=False):
                view[...] = value
            self._fed = values
            self._slots = values[len(self._buffers) :]
        inputs += self._buffers
        return inputs

    def take_first(self, program: Program) -> None:
        """The next run's work on the host was done already, while `program` was traced of the same step."""
        self._first = program.first_scalars

    def _gather(self) -> None:
        """Collect the host tensors of the state; again only when a csx tensor somewhere was given other contents."""
        state = self.program.state
        if any(isinstance(t, CsxTensor) is not was for t, was in zip(state, self._on_csx, strict=True)):
            raise TraceError(
                f"the step {self.program.name!r} uses parameters that have left csx since it was traced. Move the "
                "model back with cstorch.compile(model), or trace a new step."
            )
        if self.executable is None:  # nothing runs: contents that are pending stay so
            self._hosts = [_stand_in(t) if isinstance(t, CsxTensor) else t.detach() for t in state]
            return
        self._hosts = [t._host if isinstance(t, CsxTensor) else t if _is_plain(t) else t.detach() for t in state]
        for node, host in zip(self.program.graph.graph.find_nodes(op="placeholder"), self._hosts, strict=False):
            fake = node.meta["val"]
            if (host.shape, host.dtype, host.stride()) != (fake.shape, fake.dtype, fake.stride()):
                raise TraceError(
                    f"the step {self.program.name!r} was traced with a state tensor {tuple(fake.shape)} {fake.dtype} "
                    f"of strides {fake.stride()}, and its contents are now {tuple(host.shape)} {host.dtype} of strides "
                    f"{host.stride()}. Keep shape, dtype and layout when assigning .data, or trace a new step."
                )
        self._hosts_seen = observer.host_changes

    def run(self, leaves: list[torch.Tensor], numbers: list[Number]) -> Any:
        """Run once and return what the step returned, its handles standing for the new values."""
        program = self.program
        if self.executable is None:  # validate_only and compile_only: nothing runs
            return program.result
        profile = context.backend.profile
        if profile is None:
            outputs = self.executable(self.inputs(leaves, numbers))
        else:
            with profile("execute"):
                outputs = self.executable(self.inputs(leaves, numbers))
        for index, cell in program.handles:
            cell.value = outputs[index]
        self._gradients.leave(outputs)
        if self._makes_state:
            for optimizer in program.optimizers:
                optimizer.install(lambda leaf: self._fill(leaf, outputs))
        if program.effects:
            self._act(outputs)
        if program.dynamic_result:
            return nest.map_leaves(lambda leaf: self._fill(leaf, outputs), program.result)
        return program.result

    def _fill(self, leaf: Any, outputs: list[torch.Tensor]) -> Any:
        if type(leaf) is Output:
            return outputs[leaf.index]
        return self._slots[leaf.index] if type(leaf) is ScalarSlot else leaf

    def _act(self, outputs: list[torch.Tensor]) -> None:
        iteration = context.iteration
        alone: list[tuple[Callable[..., Any], Any, Any]] = []

        def fill(leaf: Any) -> Any:
            return self._fill(leaf, outputs)

        for effect in self.program.effects:
            host = effect.kind == "host"
            if not host and iteration is not None and not iteration.runs(effect.kind):
                continue
            args, kwargs = nest.map_leaves(fill, effect.args), nest.map_leaves(fill, effect.kwargs)
            if host:
                effect.function(*args, **kwargs)
            elif iteration is None:
                alone.append((effect.function, args, kwargs))
            else:
                iteration.queue(effect.kind, effect.function, args, kwargs)
        if alone:  # no loop around the step: its own end is the end of the iteration
            context.run_closures(alone)


class TracedStep:
    """A step function that `cstorch.trace` wraps. Works on functions and, as a descriptor, on methods.

    Args:
        step: The step function.
    """

    __name__: str

    def __init__(self, step: Callable[..., Any]) -> None:
        functools.update_wrapper(self, step)
        self._step = step
        self._programs: dict[Any, list[BoundProgram]] = {}
        self._count = 0
        self._latest: BoundProgram | None = None  # most calls repeat the one before
        self._latest_key: list[Any] = []

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    @property
    def programs(self) -> list[Program]:
        """The programs traced so far, for inspection."""
        return [bound.program for several in self._programs.values() for bound in several]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step: its program on CSX, the function itself elsewhere."""
        backend = context.backend
        if backend is None or not backend.is_csx or context.recording is not None:
            if context.recording is not None:
                return self._step(*args, **kwargs)
            with hooks_called():
                returned = self._step(*args, **kwargs)
            if context.view is not None:
                context.view.returned(self.__name__, returned)
            return returned
        if context.in_closure:
            raise TraceError(
                f"the traced step {self.__name__!r} was called from a step closure. A closure is host work at "
                "the end of a step; call the traced step from the loop body."
            )
        leaves: list[torch.Tensor] = []
        numbers: list[Number] = []
        parts: list[Any] = [backend, flags()]
        nest.signature(args, parts, leaves, numbers)
        if kwargs:
            nest.signature(kwargs, parts, leaves, numbers)
        bound = self._latest
        if bound is None or parts != self._latest_key or not bound.matches(numbers):
            key = tuple(parts)
            bound = self._find(key, numbers) or self._make(backend, key, args, kwargs, leaves, numbers)
            self._latest, self._latest_key = bound, parts
        elif backend.retraces:
            self._retrace(backend, bound, args, kwargs, leaves, numbers)
        return bound.run(leaves, numbers)

    def _find(self, key: Any, numbers: list[Number]) -> BoundProgram | None:
        known = self._programs.get(key, ())
        for bound in known:
            if bound.matches(numbers):
                return bound
        for bound in known:
            for optimizer in bound.program.optimizers:
                optimizer.adopt()
            if bound.program.optimizers and bound.matches(numbers):
                return bound
        return None

    def _make(
        self,
        backend: Any,
        key: Any,
        args: Any,
        kwargs: Any,
        leaves: list[torch.Tensor],
        numbers: list[Number],
    ) -> BoundProgram:
        why, expected = self._announce(key, numbers)
        profile = backend.profile or contextlib.nullcontext
        with profile("trace"), backend.report.watching(self.__name__):
            program = replace(self._watched(None if expected else why, backend, args, kwargs, leaves, numbers), why=why)
            own = first_parts(leaves, program.parts, backend.systems)
            example = BoundProgram(program, None).inputs(own, numbers)
        with no_autocast(), profile("compile"):  # its casts are in the graph
            executable = backend.make_executable(program, example)
        if executable is not None and any_autocast():
            executable = _outside_autocast(executable)
        bound = BoundProgram(program, executable)
        self._programs.setdefault(key, []).append(bound)
        self._count += 1
        backend.programs += 1
        backend.loaded.append(weakref.ref(program))
        return bound

    def _watched(self, why: str | None, *arguments: Any) -> Program:
        """Trace, holding the step to the rules of the real system where that is asked for."""
        from cstorch import constraints  # it knows the backend, which knows this module

        if not constraints.is_active():
            return self._trace(None, *arguments)
        watch = constraints.Watch(self.__name__, why)
        program = self._trace(watch.calls(), *arguments)
        watch.finish(program)
        return program

    def _trace(
        self,
        around: contextlib.AbstractContextManager[None] | None,
        backend: Any,
        args: Any,
        kwargs: Any,
        leaves: list[torch.Tensor],
        numbers: list[Number],
    ) -> Program:
        systems, name = backend.systems, self.__name__
        hosts = [_with_contents(leaf) for leaf in leaves]
        parts = parts_of(hosts, systems, name)
        hosts = first_parts(hosts, parts, systems)
        backend.is_tracing = True
        try:
            return trace_program(
                self._step, args, kwargs, hosts, numbers, backend.modules, name, systems, parts, around
            )
        finally:
            backend.is_tracing = False

    def _retrace(
        self,
        backend: Any,
        bound: BoundProgram,
        args: Any,
        kwargs: Any,
        leaves: list[torch.Tensor],
        numbers: list[Number],
    ) -> None:
        """Run the Python of the step again and compare; what it warns of was said at the first trace."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            now = self._trace(None, backend, args, kwargs, leaves, numbers)
        compare(bound.program, now)
        bound.take_first(now)

    def _announce(self, key: Any, numbers: list[Number]) -> tuple[str, bool]:
        """Log the trace; warn of the second program, refuse one too many. Returns why, and whether that is usual."""
        if self._count == 0:
            logger.info("tracing %r", self.__name__)
            return "the first call", True
        why = self._difference(key, numbers)
        if self._count >= PROGRAM_LIMIT:
            raise ProgramLimitError(
                f"the step {self.__name__!r} has become {self._count} programs and needs another one: {why}. "
                "Each program is traced and compiled, so a step must settle. If batches differ in shape, pad "
                "them or drop the last short one with DataLoader(..., drop_last=True); if a number changes, "
                "pass it as a 0-d tensor."
            )
        message = f"the step {self.__name__!r} is traced again, as program {self._count + 1}: {why}."
        expected = any(program.is_first_step for program in self.programs)
        if self._count == 1 and not expected:
            advice = "Batches of one shape, for example with DataLoader(..., drop_last=True), avoid it."
            shape = "a tensor of shape" in why
            warnings.warn(
                f"{message} Every program is traced and compiled once and then kept.{' ' + advice if shape else ''}",
                stacklevel=4,
            )
        logger.info("%s", message)
        return why, expected

    def _difference(self, key: Any, numbers: list[Number]) -> str:
        if self._programs.get(key):
            return self._programs[key][-1].program.mismatch(numbers)
        backends = {known[0] for known in self._programs}
        if key[0] not in backends:
            return "another backend is in use"
        last = next(reversed(self._programs))
        if last[1] != key[1]:
            return flag_difference(last[1], key[1])
        return _first_difference(last[2:], key[2:])


def _outside_autocast(executable: Executable) -> Executable:
    """`executable` of a program that is called within autocast: it casts by itself and changes weights."""

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        with no_autocast():
            outputs = executable(inputs)
        forget_casts()
        return outputs

    return run


def _is_plain(tensor: Any) -> bool:
    return type(tensor) is torch.Tensor and not tensor.requires_grad


def _stand_in(tensor: CsxTensor) -> torch.Tensor:
    """A cpu tensor with the layout of `tensor`, and its contents where they are there."""
    like = tensor.shape_only
    if like.device.type == "cpu":
        return like
    return (
        constant((like.untyped_storage().nbytes(),), 0, torch.uint8)
        .view(like.dtype)
        .as_strided(like.shape, like.stride())
    )


def _with_contents(leaf: torch.Tensor) -> torch.Tensor:
    """The host tensor behind an argument: its contents, or the value of a handle that another step returned."""
    if not isinstance(leaf, CsxTensor):
        return leaf.detach()
    if leaf.is_handle and leaf._cell is not None and leaf._cell.value is not None:
        return leaf._cell.value
    return to_host(leaf, "giving a step a tensor that an earlier traced step used up,").detach()


def _first_difference(old: tuple[Any, ...], new: tuple[Any, ...]) -> str:
    if len(old) != len(new):
        return f"the structure of its arguments is {_words(new)}, before it was {_words(old)}"
    for before, now in zip(old, new, strict=True):
        if before != now:
            if isinstance(before, torch.Size) and isinstance(now, torch.Size):
                return f"a tensor of shape {tuple(now)} came where one of shape {tuple(before)} was traced"
            return f"{now!r} came where {before!r} was traced"
    return "its arguments differ"


def _words(key: tuple[Any, ...]) -> str:
    return " ".join(part.__name__ if isinstance(part, type) else repr(part) for part in key)


def trace(step_fn: Callable[..., Any]) -> TracedStep:
    """Decorator: what the function does runs on the device as one program (`cstorch.trace`).

    On CSX the function's Python runs once for each structure, shape and dtype of its arguments; the recorded
    forward pass, backward pass and optimizer step are compiled whole and replayed at later calls. Numbers
    among the arguments and in the optimizers' param_groups are read anew at each call. On CPU and GPU the
    function runs as it is.

    No tensor may be read in it: not printed, converted with `.item()` or used in a Python condition. Pass it
    to a function decorated with `cstorch.step_closure` instead.

    Args:
        step_fn: The training or evaluation step. Any arguments; any nesting of tensors and other values returned.

    Returns:
        The wrapped step. Tensors that it returns can be given to step closures; reading them elsewhere raises.

    Raises:
        TraceError: at a call, when the step does what a program cannot repeat; the message names the line.
    """
    return step_fn if isinstance(step_fn, TracedStep) else TracedStep(step_fn)
