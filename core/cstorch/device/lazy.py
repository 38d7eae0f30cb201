"""Lazy creation: what is done to tensors that nobody has read yet is recorded, and replayed on first need.

A pending tensor is a meta tensor (a shape without contents) and the `Memory` that it will be a view of. Operations on
it run on the meta tensors at once and are kept for later. A replay runs what the wanted memory depends on, in the
order of the recording. Random draws move the generator on when they are recorded and start from the state of then
when they are replayed, so that all numbers, before, between and after, are those of eager PyTorch.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from cstorch._torch_private.autocast import no_autocast
from cstorch._torch_private.device import set_bits
from cstorch._torch_private.tracing import mutated_arguments, outside_modes
from cstorch.device import twister
from cstorch.device.constant import constant

aten = torch.ops.aten

SCRATCH = 1 << 22
"""Draws of up to so many bytes are made into scratch memory to move the generator on; longer ones are skipped."""

SNAPSHOT = 1 << 16
"""Contents of up to so many bytes that a recorded operation reads are copied; otherwise it runs at once."""

_CALIBRATION = 1024
_FILLS = {
    aten.zeros_like.default: 0, aten.new_zeros.default: 0, aten.ones_like.default: 1, aten.new_ones.default: 1,
    aten.full_like.default: None, aten.new_full.default: None, aten.empty_like.default: None,
    aten.new_empty.default: None, aten.new_empty_strided.default: None,
}  # fmt: skip
_DRAWS = {aten.rand_like.default: (aten.uniform_.default, 0.0, 1.0), aten.randn_like.default: (aten.normal_.default,)}
_SKIPPED = frozenset({aten.uniform_.default, aten.normal_.default})
_WHOLE = frozenset(
    {
        "fill_", "zero_", "copy_", "uniform_", "normal_", "bernoulli_", "exponential_", "random_", "log_normal_",
        "cauchy_", "geometric_",
    }
)  # fmt: skip

SHAPE_ONLY = frozenset({*_FILLS, *_DRAWS})
"""Operations that take no more than its shape from a tensor."""

_order = itertools.count()
_depth = 0


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """New csx tensors are pending within."""
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


def is_recording() -> bool:
    """Whether new csx tensors are pending now."""
    return _depth > 0


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """No mode of the caller reaches the operations within."""
    with (
        outside_modes(),
        no_autocast(),
        torch._C.DisableTorchFunction(),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        yield


class Memory:
    """What pending tensors are views of.

    Attributes:
        key: The storage of its meta tensors.
        storage: The contents, once they were needed.
        last: The last operation that writes to it.
        readers: Operations that read what `last` wrote, as long as somebody can still ask for their results.
    """

    __slots__ = ("__weakref__", "key", "last", "readers", "storage")

    def __init__(self, key: torch.UntypedStorage) -> None:
        self.key = key
        self.storage: torch.UntypedStorage | None = None
        self.last: Operation | None = None
        self.readers: list[weakref.ref[Operation]] = []

    @property
    def settled(self) -> bool:
        """Whether the contents are there and nothing recorded is still to change them."""
        return self.storage is not None and (self.last is None or self.last.done)

    def allocate(self) -> torch.UntypedStorage:
        """The contents as far as they were replayed."""
        if self.storage is None:
            self.storage = torch.UntypedStorage(self.key.nbytes())
        return self.storage

    def settle(self) -> torch.UntypedStorage:
        """Replay what the contents depend on, and what depends on the contents of now; then they may be changed."""
        wanted = [] if self.last is None else [self.last]
        wanted += [op for ref in self.readers if (op := ref()) is not None]
        for operation in _with_all_before(wanted):
            operation.run()
            operation.finish()
        self.readers.clear()
        return self.allocate()

    @contextlib.contextmanager
    def peeking(self) -> Iterator[None]:
        """The contents are there within; then they, and what they depend on, are pending again if they were."""
        operations = [] if self.last is None else _with_all_before([self.last])
        touched = [memory for operation in operations for memory in operation.memories()]
        if any(memory.storage is not None for memory in touched):
            self.settle()
            yield
            return
        try:
            for operation in operations:
                operation.run()
            yield
        finally:
            for memory in touched:
                memory.storage = None

    def forget(self) -> None:
        """What was recorded of the contents will not be replayed: they are about to be overwritten."""
        if any(ref() is not None for ref in self.readers):
            self.settle()
        self.last = None


def _with_all_before(wanted: list[Operation]) -> list[Operation]:
    """These and what must be replayed before them, in order."""
    found: dict[int, Operation] = {}
    while wanted:
        operation = wanted.pop()
        if not operation.done and operation.number not in found:
            found[operation.number] = operation
            wanted += operation.before
            wanted += [op for ref in operation.overwritten if (op := ref()) is not None]
    return [found[number] for number in sorted(found)]


class Pending:
    """A tensor without contents: the view that `meta` describes of `memory`."""

    __slots__ = ("memory", "meta")

    def __init__(self, meta: torch.Tensor, memory: Memory | None = None) -> None:
        self.meta = meta
        self.memory = Memory(meta.untyped_storage()) if memory is None else memory

    @property
    def is_whole(self) -> bool:
        """Whether every element of the memory is seen once."""
        size = self.meta.numel() * self.meta.dtype.itemsize
        dense = self.meta.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(self.meta)
        return size == self.memory.key.nbytes() and bool(dense)

    def item(self) -> Any:
        """The one value, without keeping what it is computed from."""
        with self.peek() as contents:
            return contents.item()

    @contextlib.contextmanager
    def peek(self) -> Iterator[torch.Tensor]:
        """The cpu tensor, replayed for as long as it is looked at; pending again afterwards."""
        with plainly(), self.memory.peeking():
            yield _View(self)()

    def constant(self) -> Any:
        """The one value that the whole memory has, if one was just filled into it; otherwise None."""
        last = self.memory.last
        return None if last is None or self.memory.storage is not None else last.constant()

    def contents(self) -> torch.Tensor:
        """The cpu tensor, replayed."""
        with plainly():
            self.memory.settle()
            return _View(self)()


def _geometry(tensor: torch.Tensor) -> tuple[Any, torch.Size, tuple[int, ...]]:
    return tensor.storage_offset(), tensor.shape, tensor.stride()


class _View:
    """A pending tensor in a recorded call, as it was then."""

    __slots__ = ("bits", "dtype", "geometry", "memory")

    def __init__(self, pending: Pending) -> None:
        meta = pending.meta
        self.memory = pending.memory
        self.dtype = meta.dtype
        self.geometry = _geometry(meta)
        self.bits = (meta.is_conj(), meta.is_neg())

    def __call__(self) -> torch.Tensor:
        made = torch.empty(0, dtype=self.dtype).set_(self.memory.allocate(), *self.geometry)
        return set_bits(made, *self.bits)


class Operation:
    """A recorded call.

    Attributes:
        number: Its place in the order of recording.
        before: Operations whose results it reads or writes on.
        overwritten: Operations that read what it overwrites.
        made: New results: position, memory, dtype and geometry. A memory that is gone needs no result.
        state: Where the generator stood, for a random draw.
    """

    def __init__(self, func: Any, flat: list[Any], spec: Any, state: torch.Tensor | None) -> None:
        self.number = next(_order)
        self.func, self.flat, self.spec, self.state = func, flat, spec, state
        self.before: list[Operation] = []
        self.overwritten: list[weakref.ref[Operation]] = []
        self.made: list[tuple[int, weakref.ref[Memory], torch.dtype, Any]] = []
        self.done = False

    def run(self) -> None:
        """Replay; the operations before were replayed."""
        if not self._fill():
            args, kwargs = pytree.tree_unflatten([v() if type(v) is _View else v for v in self.flat], self.spec)
            if self.state is None:
                out = self.func(*args, **kwargs)
            else:
                generator = kwargs.get("generator") or torch.default_generator
                now = generator.get_state()
                generator.set_state(self.state)
                try:
                    out = self.func(*args, **kwargs)
                finally:
                    generator.set_state(now)
            self._keep(pytree.tree_leaves(out))

    def finish(self) -> None:
        """The results are kept: nothing of the call is needed any more."""
        self.done = True
        self.flat, self.before, self.overwritten, self.made = [], [], [], []

    def memories(self) -> list[Memory]:
        """What the call reads and writes."""
        found = [v.memory for v in self.flat if type(v) is _View]
        return found + [memory for made in self.made if (memory := made[1]()) is not None]

    def constant(self) -> Any:
        """The value, for a call that fills one into the whole of a memory; otherwise None."""
        if self.func not in (aten.fill_.Scalar, aten.zero_.default) or self.done:
            return None
        view: _View = self.flat[0]
        count = torch.Size(view.geometry[1]).numel()
        if count * view.dtype.itemsize != view.memory.key.nbytes() or any(view.bits):
            return None
        return 0 if self.func is aten.zero_.default else self.flat[1]

    def draws_into(self, meta: torch.Tensor) -> bool:
        """Whether the one tensor of the call is the view that `meta` is."""
        views = [v for v in self.flat if type(v) is _View]
        return len(views) == 1 and views[0].dtype == meta.dtype and views[0].geometry == _geometry(meta)

    def draw(self, piece: torch.Tensor, generator: torch.Generator) -> None:
        """Make the call, a random draw, on `piece` in place of its tensor."""
        args, kwargs = pytree.tree_unflatten([piece if type(v) is _View else v for v in self.flat], self.spec)
        self.func(*args, **{**kwargs, "generator": generator})

    def _fill(self) -> bool:
        """One value over the whole of a memory that is not there yet: no need to have it."""
        value = self.constant()
        if value is None or self.flat[0].memory.storage is not None:
            return False
        view: _View = self.flat[0]
        count = torch.Size(view.geometry[1]).numel()
        view.memory.storage = constant((count,), value, view.dtype).untyped_storage()
        return True

    def _keep(self, out: list[Any]) -> None:
        given = {v.memory.storage.data_ptr() for v in self.flat if type(v) is _View and v.memory.storage is not None}
        for position, ref, dtype, expected in self.made:
            memory = ref()
            if memory is None:
                continue
            result: torch.Tensor = out[position]
            storage = result.untyped_storage()
            if (
                _geometry(result) == expected
                and storage.nbytes() == memory.key.nbytes()
                and storage.data_ptr() not in given
            ):
                memory.storage = storage
            else:
                made = torch.empty(0, dtype=dtype).set_(memory.allocate(), *expected)
                made.copy_(result)


def empty(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pending:
    """A pending tensor that `func`, a factory, makes with no contents."""
    with plainly():
        return Pending(func(*args, **{**kwargs, "device": torch.device("meta")}))


def overwrite(target: Any, source: Any) -> None:
    """`target.copy_(source)` is about to run at once: what made the contents before need not be replayed."""
    is_target = isinstance(target, Pending) and target.is_whole
    if is_target and isinstance(source, torch.Tensor) and target.meta.shape == source.shape:
        target.memory.forget()


def can_wait(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call is recorded outside `recording()` too: it initialises, copies or views a pending tensor."""
    if func in SHAPE_ONLY or func in (aten.clone.default, aten._to_copy.default) or _is_view(func):
        return True
    return any(
        isinstance(t, torch.Tensor) and getattr(t, "is_pending", False) for t in mutated_arguments(func, args, kwargs)
    )


def _is_view(func: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


def takes_shape_only(func: Any) -> bool:
    """Whether `func` makes a new tensor like another one without looking at its contents."""
    return func in _FILLS or func in _DRAWS


def record(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a call whose tensors are Pending or cpu tensors.

    Returns:
        The results, with Pending for tensors; None when the call cannot wait: it reads values, or its results
        depend on them, or it reads much that may change before it is replayed.
    """
    with plainly():
        if takes_shape_only(func):
            return _like(func, args, kwargs)
        return _record(func, args, kwargs)


def _like(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pending | None:
    """A new tensor that takes no more than its shape from another one."""
    other = args[0]
    meta = other.meta if isinstance(other, Pending) else other.to("meta")
    wide = func in (aten.new_empty_strided.default,)
    out = func(meta, *args[1:], **{**kwargs, "device": torch.device("meta")}) if not wide else func(meta, *args[1:])
    if wide and kwargs.get("dtype") is not None:
        out = torch.empty_strided(args[1], args[2], dtype=kwargs["dtype"], device="meta")
    made = Pending(out)
    if func in _DRAWS:
        draw, *numbers = _DRAWS[func]
        return None if _record(draw, (made, *numbers), {}) is None else made
    value = _FILLS[func]
    if func in (aten.full_like.default, aten.new_full.default):
        value = args[1] if func is aten.full_like.default else args[2]
    if value is not None:
        _record(aten.fill_.Scalar, (made, value), {})
    return made


def _record(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    flat, spec = pytree.tree_flatten((args, kwargs))
    inputs: dict[int, Pending] = {id(v): v for v in flat if isinstance(v, Pending)}
    read = [v for v in flat if isinstance(v, torch.Tensor)]
    written = [v for v in mutated_arguments(func, args, kwargs) if v is not None]
    if sum(t.numel() * t.dtype.itemsize for t in read) > SNAPSHOT or func.overloadpacket is aten.set_:
        return None
    if not inputs or any(isinstance(v, torch.Tensor) for v in written) or (read and _is_view(func)):
        return None
    target = kwargs.get("device")
    if target is not None and torch.device(target).type == "cpu":
        return None
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    if is_random and (len(inputs) != 1 or read or written != [args[0]]):
        return None
    shapes = [v.meta if isinstance(v, Pending) else v.to("meta") if isinstance(v, torch.Tensor) else v for v in flat]
    meta_args, meta_kwargs = pytree.tree_unflatten(shapes, spec)
    if target is not None:
        meta_kwargs["device"] = torch.device("meta")
        kwargs = {**kwargs, "device": torch.device("cpu")}
        flat, spec = pytree.tree_flatten((args, kwargs))
    try:
        out = func(*meta_args, **meta_kwargs)
    except Exception:  # whatever stands in the way of shapes alone: the call on contents works, or says why not
        return None
    state = None
    if is_random:
        state = _draw(func, args, kwargs)
        if state is None:
            return None
    memories = {v.memory.key._cdata: v.memory for v in inputs.values()}
    by_meta = {id(v.meta): v for v in inputs.values()}
    outs, out_spec = pytree.tree_flatten(out)
    tensors = [o for o in outs if isinstance(o, torch.Tensor)]
    if not written and (not tensors or len(tensors) != len([o for o in outs if o is not None])):
        return None
    results: list[Any] = []
    new: list[tuple[int, Pending]] = []
    for position, o in enumerate(outs):
        if not isinstance(o, torch.Tensor):
            results.append(o)
            continue
        known = by_meta.get(id(o))
        if known is None:
            known = Pending(o, memories.get(o.untyped_storage()._cdata))
            if known.memory not in memories.values():
                memories[known.memory.key._cdata] = known.memory
                new.append((position, known))
        results.append(known)
    if (written or new) and torch.Tag.inplace_view not in func.tags:
        kept = [_View(v) if isinstance(v, Pending) else v.clone() if isinstance(v, torch.Tensor) else v for v in flat]
        operation = Operation(func, kept, spec, state)
        _link(operation, func, list(inputs.values()), written, new)
    return pytree.tree_unflatten(results, out_spec)


def _link(operation: Operation, func: Any, inputs: list[Pending], written: list[Any], new: list[Any]) -> None:
    name = func.overloadpacket.__name__
    sources = {id(v.memory) for v in inputs if all(v is not w for w in written)}
    for v in inputs:
        memory, last = v.memory, v.memory.last
        overwrites = any(v is w for w in written)
        whole = overwrites and name in _WHOLE and v.is_whole and id(memory) not in sources
        if last is not None and not last.done and not whole:
            operation.before.append(last)
        if not overwrites:
            memory.readers.append(weakref.ref(operation))
    for v in written:
        operation.overwritten += v.memory.readers
        v.memory.readers = []
        v.memory.last = operation
    for position, v in new:
        v.memory.last = operation
        operation.made.append((position, weakref.ref(v.memory), v.meta.dtype, _geometry(v.meta)))


def _draw(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Move the generator past a draw into args[0]; the state it starts from, or None when it cannot be skipped."""
    meta: torch.Tensor = args[0].meta
    generator = kwargs.get("generator") or torch.default_generator
    before: torch.Tensor = generator.get_state()
    if meta.numel() * meta.dtype.itemsize <= SCRATCH:
        func(torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype), *args[1:], **kwargs)
        return before
    if func not in _SKIPPED or not meta.is_contiguous():
        return None
    rest = meta.numel() % _CALIBRATION + _CALIBRATION
    counts = [_words(func, args, kwargs, meta.dtype, rest + more * _CALIBRATION) for more in (0, 1, 2)]
    step = counts[1] - counts[0]
    if counts[2] - counts[1] != step:
        return None
    generator.set_state(twister.skip(before, counts[0] + (meta.numel() - rest) // _CALIBRATION * step))
    return before


def _words(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype, count: int) -> int:
    """How many words of the generator a draw of `count` elements takes."""
    generator = torch.Generator().manual_seed(0)
    func(torch.empty(count, dtype=dtype), *args[1:], **{**kwargs, "generator": generator})
    return twister.distance(torch.Generator().manual_seed(0).get_state(), generator.get_state())
