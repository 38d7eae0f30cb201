"""Runs a step's Python once under recording and makes a Program of it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from cstorch._torch_private.backward import around_engine
from cstorch._torch_private.tracing import counts_as_given, masks_as_given
from cstorch.core.compile import hooks_called
from cstorch.device import CsxTensor, ValueCell
from cstorch.device.autocast import forget_casts
from cstorch.device.tensor import observer
from cstorch.errors import TraceError
from cstorch.tracing import nest
from cstorch.tracing.across_systems import Systems
from cstorch.tracing.anomaly import looking_for_nan
from cstorch.tracing.context import context
from cstorch.tracing.data_parallel import DataParallel
from cstorch.tracing.functions import StepFunctions
from cstorch.tracing.gradients import GradientOf
from cstorch.tracing.guards import Guards
from cstorch.tracing.host_code import HostCode
from cstorch.tracing.host_random import HostRandom
from cstorch.tracing.host_values import with_host_values
from cstorch.tracing.iterators import Iterators
from cstorch.tracing.modules import ModuleWatch
from cstorch.tracing.optimizers import OptimizerSteps
from cstorch.tracing.program import Effect, Output, Program, ScalarSlot
from cstorch.tracing.rebinding import Rebinding, look_around
from cstorch.tracing.recorder import Input, Recorder
from cstorch.tracing.scalars import HostScalar, Number, symbolic_math
from cstorch.tracing.schedulers import scheduler_steps
from cstorch.where import user_line

aten = torch.ops.aten


class Recording:
    """The effects and outputs that a trace gathers beside its graph."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.outputs: list[fx.Node] = []
        self.slots: list[str] = []
        self.effects: list[Effect] = []

    def output(self, tensor: CsxTensor) -> int:
        """Make the present value of `tensor` an output of the program; its index."""
        node = self.recorder.handle(tensor)._node
        self.outputs.append(node)
        return len(self.outputs) - 1

    def stand_in(self, leaf: Any) -> Any:
        """What stands in recorded arguments for a leaf that differs from step to step."""
        if isinstance(leaf, HostScalar):
            self.slots.append(leaf._code)
            self.recorder.scalars.hints[leaf._code] = leaf._hint
            return ScalarSlot(len(self.slots) - 1)
        if isinstance(leaf, torch.Tensor) and (isinstance(leaf, CsxTensor) or id(leaf) in self.recorder._handles):
            with torch.no_grad():
                copy = leaf.detach().clone()  # the value of now: the step may change the tensor later
            return Output(self.output(copy))  # type: ignore[arg-type]
        return leaf

    def add_effect(
        self, kind: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Record a call that repeats after each run."""
        function = with_host_values(function, args, kwargs)
        made = Effect(kind, function, nest.map_leaves(self.stand_in, args), nest.map_leaves(self.stand_in, kwargs))
        self.effects.append(made)


def trace(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: list[torch.Tensor],
    numbers: list[Number],
    roots: list[nn.Module],
    name: str,
    systems: Systems | None = None,
    parts: list[int] | None = None,
    around: contextlib.AbstractContextManager[None] | None = None,
) -> Program:
    """Run `step` once, recording it.

    Args:
        step: The user's function.
        args: Its arguments.
        kwargs: Its keyword arguments.
        leaves: The contents of the tensors that are inputs by position, in order, as host tensors.
        numbers: The ints and floats among the arguments, in order.
        roots: Modules whose mode matters from the start.
        name: For messages.
        systems: The systems that run the program together; None for one.
        parts: Positions in `leaves` of parts of a batch that is divided among them.
        around: Entered last before the step's Python runs, so that it sees what that does first.

    Returns:
        The program. State that the trace touched is as it was before.

    Raises:
        TraceError: The step does what a program cannot repeat; the user's line is in the message.
    """
    for tensor in leaves:
        if tensor.layout != torch.strided:
            raise TraceError(
                f"the step {name!r} was called at {user_line()} with a sparse tensor ({tensor.layout}), whose size in "
                "memory depends on its values, so it cannot be the input of a program. Call it with tensor.to_dense()."
            )
    recorder = Recorder([t.detach().contiguous() for t in leaves], numbers)
    recording = Recording(recorder)
    stepper = OptimizerSteps(recorder)
    draws = HostRandom(stepper.tables)
    watch = ModuleWatch(roots)
    parallel = DataParallel(recorder, systems, parts or []) if systems is not None else None
    counters = {"leaf": 0, "number": 0}

    def inside(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and not nest.is_state(leaf):
            index = counters["leaf"]
            counters["leaf"] += 1
            made = CsxTensor(recorder.leaves[index])
            made._host, made._leaf = None, index
            return made.requires_grad_(leaf.requires_grad)
        if nest.number_of(leaf) is not None:
            index = counters["number"]
            counters["number"] += 1
            return recorder.scalars.argument(index)
        return draws.stand_in(leaf)

    forget_casts()
    generator = torch.get_rng_state()
    rebinding: Rebinding | None = None
    context.recording, observer.in_trace = recording, True
    try:
        args, kwargs = nest.map_leaves(inside, args), nest.map_leaves(inside, kwargs)
        rebinding = look_around(recorder, watch, step, nest.leaves((args, kwargs)))
        iterators = Iterators(rebinding.holders)
        with contextlib.ExitStack() as stack:
            if torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(False))
                stack.enter_context(torch.no_grad())
            stack.enter_context(stepper)
            stack.enter_context(watch)
            if parallel is not None:
                stack.enter_context(parallel)
            stack.enter_context(scheduler_steps(stepper.tables, recording))
            stack.enter_context(recorder.gradients.watching())
            stack.enter_context(recorder.draw_order.watching())
            stack.enter_context(symbolic_math())
            # The engine sizes its device queues at the process's first backward: stay in this thread.
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            stack.enter_context(masks_as_given())
            stack.enter_context(counts_as_given())
            stack.enter_context(recorder)
            functions = stack.enter_context(
                StepFunctions(recorder.scalar_input, recorder.entry_of_table, recorder.gradients)
            )
            stack.enter_context(looking_for_nan())
            stack.enter_context(around_engine(functions.resumed))
            with draws.watching(rebinding.holders), around or contextlib.nullcontext(), hooks_called():
                returned = step(*args, **kwargs)
            stepper.tables.conceal(by_user=True)
            iterators.warn_of_taken(name)
            rebinding.settle(recording, name)
            program = _finish(recorder, recording, returned, watch, stepper, parallel, name)
    except BaseException:
        if rebinding is not None:
            rebinding.restore()
        raise
    finally:
        forget_casts()
        recorder.gradients.restore()
        context.recording, observer.in_trace = None, False
        recorder.active = False
        for entry in recorder.inputs:
            if isinstance(entry.source, CsxTensor):
                entry.source._recorder = entry.source._node = entry.source._fake = None
    frozen = draws.frozen()
    if recorder.draws.frozen or not (recorder.redraws or torch.equal(torch.get_rng_state(), generator)):
        frozen["torch's cpu generator"] = list(dict.fromkeys(recorder.draws.frozen))
    if recorder.redraws:  # the first run draws what the trace drew
        torch.set_rng_state(generator)
    _warn_of_host_random(frozen, name)
    return program


def _finish(
    recorder: Recorder,
    recording: Recording,
    returned: Any,
    watch: ModuleWatch,
    stepper: OptimizerSteps,
    parallel: DataParallel | None,
    name: str,
) -> Program:
    handles: list[tuple[int, ValueCell]] = []
    dynamic = False

    def outside(leaf: Any) -> Any:
        nonlocal dynamic
        if isinstance(leaf, HostScalar):
            dynamic = True
            return recording.stand_in(leaf)
        if isinstance(leaf, CsxTensor):
            return Output(recording.output(_unaliased(recorder, leaf)))
        return leaf

    def handle(leaf: Any) -> Any:
        if type(leaf) is not Output:
            return leaf
        made = CsxTensor(recording.outputs[leaf.index].meta["val"], host=False)
        made._cell = ValueCell()
        handles.append((leaf.index, made._cell))
        return made

    result = nest.map_leaves(outside, returned)
    gradients = recorder.gradients.plan(recorder, lambda grad: recording.output(_unaliased(recorder, grad)))
    owners = recorder.gradients.owners()
    optimizers = stepper.bindings(recording.stand_in)
    if parallel is not None:
        recording.outputs = parallel.finish(recording.outputs, name)
    result = nest.map_leaves(handle, result)
    recorder.graph.output(tuple(recording.outputs))
    recorder.redraws = recorder.draws.prune()
    used = [entry for entry in recorder.inputs if entry.node.users]
    for entry in recorder.inputs:
        if not entry.node.users:
            recorder.graph.erase_node(entry.node)
    state = [e for e in used if isinstance(e.source, torch.Tensor)]
    positions = [e for e in used if isinstance(e.source, int)]
    scalars = [e for e in used if isinstance(e.source, str)]
    _order(recorder.graph, [*state, *positions, *scalars])
    _refuse_aliases(state)
    if watch.surroundings is not None:
        watch.surroundings.guards(recorder.scalars)
    scope = recorder.scalars
    codes = [str(e.source) for e in scalars] + recording.slots
    stepper.tables.check([*codes, *scope.guards])
    return Program(
        graph=fx.GraphModule(nn.Module(), recorder.graph),
        state=[
            GradientOf(owners[id(e.source)]) if id(e.source) in owners else e.source
            for e in state
            if isinstance(e.source, torch.Tensor)
        ],
        leaves=[e.source for e in positions if isinstance(e.source, int)],
        scalars=scope.host.compile_values(codes, scope.guards, _refuse_late_guard(scope.host)),
        first_scalars=tuple(scope.hints[code] for code in codes),
        scalar_dtypes=[e.fake.dtype for e in scalars],
        holds=Guards(scope),
        modules=watch.guards(),
        optimizers=optimizers,
        requires_grad=[
            (e.source, e.source.requires_grad)
            for e in state
            if isinstance(e.source, CsxTensor) and isinstance(e.source, nn.Parameter)
        ],
        gradients=gradients,
        handles=handles,
        effects=recording.effects,
        result=result,
        dynamic_result=dynamic,
        name=name,
        parts=parallel.parts if parallel is not None else [],
    )


def _refuse_late_guard(host: HostCode) -> Callable[[str], None]:
    def refuse(code: str) -> None:
        raise TraceError(
            f"{host.describe(code)} has changed, after something that the same step does on the host, such as "
            "scheduler.step() or an optimizer's own counting. The step uses this number in Python (a comparison, a "
            "conversion, a text), so it would need another program, too late to choose one. Use the number first, "
            "or move scheduler.step() out of the step."
        )

    return refuse


def _unaliased(recorder: Recorder, tensor: CsxTensor) -> CsxTensor:
    """`tensor`, or a copy of it where its memory is that of an input."""
    handle = recorder.handle(tensor)
    assert handle._fake is not None
    if recorder._by_storage.get(handle._fake.untyped_storage()._cdata):
        with torch.no_grad():
            return handle.detach().clone()  # type: ignore[return-value]
    return handle


def _order(graph: fx.Graph, entries: list[Input]) -> None:
    for entry in reversed(entries):
        first = next(iter(graph.nodes))
        if entry.node is not first:
            first.prepend(entry.node)


def _refuse_aliases(state: list[Input]) -> None:
    """Two inputs on one memory, one of them written: a program would lose the write."""
    seen: dict[int, Input] = {}
    for entry in state:
        tensor = entry.source
        assert isinstance(tensor, torch.Tensor)
        memory = (tensor.shape_only if isinstance(tensor, CsxTensor) else tensor).untyped_storage()
        if memory.nbytes() == 0:
            continue
        other = seen.setdefault(memory._cdata, entry)
        if other is not entry and (other.mutated or entry.mutated):
            raise TraceError(
                f"two tensors of shapes {tuple(other.fake.shape)} and {tuple(entry.fake.shape)} share memory, and "
                "the step changes one of them: views made before the step cannot follow in a program. Make "
                "the view inside the step, from the tensor that is changed."
            )


def _warn_of_host_random(frozen: dict[str, list[str]], name: str) -> None:
    for source, lines in frozen.items():
        where = f" at {', '.join(lines)}" if lines else ""
        warnings.warn(
            f"the traced step {name!r} draws random numbers on the host with {source}{where}. They are drawn once, "
            "while the step is traced, and stay the same at every later step. Draw on the device instead (torch "
            'functions with device="csx", or the *_like functions), or pass the numbers in with the batch.',
            stacklevel=2,
        )
