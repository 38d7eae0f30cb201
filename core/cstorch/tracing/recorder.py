"""Records the operations of one trace as an fx graph, finding the graph's inputs as the step touches them.

Every operation of the step reaches `Recorder.dispatch` below autograd: forward, backward and optimizer
alike. It runs on fake tensors (shapes without contents) and becomes a node. A tensor that holds contents
becomes a graph input when first touched; a tensor of the host too, where the step changes it or mixes it with
the device's.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from cstorch._torch_private.autocast import no_autocast
from cstorch._torch_private.device import return_and_correct_aliasing
from cstorch._torch_private.serialization import storage_id
from cstorch._torch_private.tracing import (
    DATA_DEPENDENT,
    FakeTensorMode,
    TorchDispatchMode,
    fake_of,
    mutated_arguments,
)
from cstorch.device import CSX, CsxTensor
from cstorch.device.tensor import refuse_read
from cstorch.errors import TraceError
from cstorch.tracing.context import context
from cstorch.tracing.draw_order import DrawOrder
from cstorch.tracing.gradients import GradientLedger, refuse_consumed
from cstorch.tracing.host_draws import HostDraws
from cstorch.tracing.resizing import resized
from cstorch.tracing.scalars import HostScalar, Number, ScalarScope
from cstorch.where import user_line

aten = torch.ops.aten


@dataclass
class Input:
    """One placeholder: `source` is a tensor (state), a position among the step's arguments, or scalar code."""

    source: torch.Tensor | int | str
    node: fx.Node
    fake: torch.Tensor
    mutated: bool = False


class Recorder(TorchDispatchMode):
    """The graph of one trace while it grows.

    Args:
        leaves: The tensors that the step was called with, as host tensors.
        numbers: The numbers that the step was called with.
        parent: The recorder of the step, when this one only probes an optimizer within it.
    """

    def __init__(self, leaves: list[torch.Tensor], numbers: list[Number], parent: Recorder | None = None) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.fake_mode: Any = parent.fake_mode if parent else FakeTensorMode(allow_non_fake_inputs=True)
        self.parent = parent
        self.leaves = leaves
        self.active = True
        self.inputs: list[Input] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.gradients = GradientLedger()
        self.draw_order = DrawOrder()
        self.scalars = ScalarScope()
        self.scalars.args = numbers
        self.scalars.as_tensor = self.scalar_input
        self._by_storage: dict[int, list[Input]] = {}
        self._handles: dict[int, CsxTensor] = {}  # of host tensors, of scalars and of a parent's handles
        self._scalar_handles: dict[str, CsxTensor] = {}
        self.last_placeholder: fx.Node | None = None
        self._born = WeakIdKeyDictionary()  # host tensors that the step itself made
        self.draws = HostDraws(self)
        self.redraws = False
        self._parts = WeakIdKeyDictionary()  # of host tensors from outside: views, and numbers as csx tensors
        self._looked_at: dict[int, str] = {}  # host tensors from outside that the host computed with, and the line
        self._keep: list[Any] = []  # objects known by id stay alive as long as their id is used

    # -- inputs ------------------------------------------------------------------------------------------

    def _placeholder(self, source: torch.Tensor | int | str, fake: torch.Tensor) -> Input:
        last = self.last_placeholder
        where = self.graph.inserting_before(None) if last is None else self.graph.inserting_after(last)
        with where:
            node = self.graph.placeholder(f"in_{len(self.inputs)}")
        node.meta["val"] = fake
        self.last_placeholder = node
        made = Input(source, node, fake)
        self.inputs.append(made)
        self._by_storage.setdefault(fake.untyped_storage()._cdata, []).append(made)
        return made

    def _enter(self, tensor: CsxTensor, source: torch.Tensor | int | str, contents: torch.Tensor) -> None:
        """Make `tensor` a handle of this trace, fed from `source`, with the shape of `contents`."""
        fake = fake_of(self.fake_mode, contents.detach())
        made = self._placeholder(source, fake)
        tensor._fake, tensor._node, tensor._recorder = fake, made.node, self

    def handle(self, tensor: CsxTensor) -> CsxTensor:
        """`tensor`, or what stands for it in this trace; discovered as an input when first touched."""
        if tensor._recorder is self:
            return tensor
        known = self._handles.get(id(tensor))
        if known is not None:
            return known
        if self.parent is not None and self.parent.knows(tensor):
            outer = self.parent.handle(tensor)
            assert outer._fake is not None
            inner = CsxTensor(outer._fake, host=False)
            made = self._placeholder(tensor, outer._fake)
            inner._node, inner._recorder, inner._fake = made.node, self, outer._fake
            self._handles[id(tensor)] = inner
            self._keep.append(tensor)
            return inner
        if tensor._leaf is not None:
            self._enter(tensor, tensor._leaf, self.leaves[tensor._leaf])
            return tensor
        if tensor.is_handle:
            if tensor._cell is not None and tensor._cell.value is not None:
                raise TraceError(
                    f"a tensor that another traced step returned is used at {user_line()} without being an "
                    "argument of this step. Pass it as an argument, so that each step's value is taken."
                )
            raise refuse_consumed()
        self.gradients.touch(tensor)
        self._enter(tensor, tensor, tensor.shape_only)
        return tensor

    def knows(self, tensor: CsxTensor) -> bool:
        """Whether `tensor` is part of this trace, or can become so."""
        return tensor._recorder is self or tensor._leaf is not None or not tensor.is_handle

    def host_input(self, tensor: torch.Tensor) -> CsxTensor:
        """The handle of a host tensor that the step changes or mixes with csx tensors."""
        known = self._handles.get(id(tensor))
        if known is None:
            known = self.draws.handle(tensor)
        if known is None:
            contents = tensor.detach()
            known = CsxTensor(contents)
            self._enter(known, tensor, contents)
            known._host = None
            if tensor in self._born:  # made in the step: each run starts from what it is now, whatever changes it then
                known = self.record(aten.clone.default, (known,), {})
            self._handles[id(tensor)] = known
            self._keep.append(tensor)
        return known

    def follows(self, tensor: Any) -> bool:
        """Whether operations on `tensor` are recorded: it is on csx, or a host tensor that the step changes."""
        return isinstance(tensor, CsxTensor) or id(tensor) in self._handles

    def scalar_input(self, scalar: HostScalar) -> CsxTensor:
        """A 0-d tensor, float64 or int64, that is fed the value of `scalar` at each run."""
        known = self._scalar_handles.get(scalar._code)
        if known is None:
            dtype = self.scalars.dtype_of(scalar)
            if dtype is torch.int64:  # 2 ** n may become 0.5: an int64 input would cut it off
                self.scalars.guard(f"isinstance({scalar._code}, int)", True)
            contents = torch.tensor(scalar._hint, dtype=dtype)
            self.scalars.hints[scalar._code] = scalar._hint
            known = CsxTensor(contents)
            self._enter(known, scalar._code, contents)
            known._host = None
            self._scalar_handles[scalar._code] = known
        return known

    def entry_of_table(self, scalar: HostScalar, dtype: torch.dtype) -> torch.Tensor:
        """A 0-d tensor with the value of `scalar`, which is an entry of a host tensor of that dtype."""
        made = self.scalar_input(scalar).to(dtype)
        self._parts[made] = True
        return made

    # -- operations --------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunction(), no_autocast():  # its casts are made by now
            return self.dispatch(func, args, kwargs or {})

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record `func`, or run it when it concerns the host alone."""
        leaves = pytree.tree_leaves((args, kwargs))
        device = kwargs.get("device")
        on_device = device is not None and torch.device(device).type == CSX.type
        tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
        if not on_device and not any(isinstance(t, CsxTensor) or id(t) in self._handles for t in tensors):
            changed = [t for t in mutated_arguments(func, args, kwargs) if isinstance(t, torch.Tensor)]
            for t in changed:
                self._refuse_change_of_part(func, t)
            if all(t in self._born for t in changed):
                for t in tensors:
                    if t not in self._born:
                        self._looked_at.setdefault(id(t), user_line())
                        self._keep.append(t)
                drawn = self.draws.repeat(func, args, kwargs)
                out = func(*args, **kwargs)
                if drawn is not None:
                    self.draws.follow(out, drawn)
                made = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
                self._born.update((t, True) for t in made)
                self._parts.update((t, True) for t in made if self._is_part(t, tensors))
                return out
        if func is aten._local_scalar_dense.default:
            raise refuse_read("reading the value of a traced tensor")
        if device is not None and not on_device and func is aten._to_copy.default:
            raise refuse_read(f"moving a traced tensor to {device}")
        return self.record(func, args, {**kwargs, "device": torch.device("cpu")} if on_device else kwargs)

    def _is_part(self, made: torch.Tensor, tensors: list[torch.Tensor]) -> bool:
        """Whether `made` is a view of one of `tensors` that the step has not made."""
        memory = _memory(made)
        outside = (t for t in tensors if t is not made and (t not in self._born or t in self._parts))
        return memory is not None and any(_memory(t) == memory for t in outside)

    def _refuse_change_of_part(self, func: Any, tensor: torch.Tensor) -> None:
        if tensor in self._parts:
            raise TraceError(
                f"{func} at {user_line()} changes a part of a cpu tensor that was made before the step. A run of the "
                'program would not change it. Move the whole tensor to the device before the step, with .to("csx") or '
                "as a buffer of the module, or change it in a step closure."
            )

    def _handle_of(self, tensor: torch.Tensor) -> CsxTensor:
        return self.handle(tensor) if isinstance(tensor, CsxTensor) else self.host_input(tensor)

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Append a node for `func` and return what stands for its results."""
        if kwargs.get("layout") not in (None, torch.strided):
            raise TraceError(
                f"{func} at {user_line()} makes a sparse tensor ({kwargs['layout']}), whose size in memory depends on "
                "values, so it cannot be part of a program that is compiled once. Use dense tensors: "
                "nn.Embedding(..., sparse=False), and Adam instead of SparseAdam."
            )
        other_size = resized(self, func, args, kwargs)
        if other_size is not NotImplemented:
            return other_size
        plain_args, plain_kwargs = args, kwargs
        for t in mutated_arguments(func, args, kwargs):
            if isinstance(t, torch.Tensor):
                self._refuse_change_of_part(func, t)
                if id(t) in self._looked_at and id(t) not in self._handles:
                    raise TraceError(
                        f"{func} at {user_line()} changes a cpu tensor {tuple(t.shape)} that the step computed "
                        f"with on the host at {self._looked_at[id(t)]}. That would be done once, with the value of "
                        'the first step. Move the tensor to the device before the step, with .to("csx"), or change it '
                        "outside the step."
                    )
                self._note_write(self._handle_of(t))
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._handle_of, (args, kwargs))
        fake_args, fake_kwargs = pytree.tree_map_only(CsxTensor, lambda t: t._fake, (args, kwargs))
        try:
            with self.fake_mode:
                out = func(*fake_args, **fake_kwargs)
        except DATA_DEPENDENT as error:
            raise TraceError(
                f"{func} at {user_line()}: the shape or the course of this operation depends on the values in "
                "its input, so it cannot be part of a program that is compiled once. Use a form with a static "
                "shape: torch.where(mask, a, b) for indexing with a mask, a class count for one_hot, a fixed "
                "number of elements (topk) for nonzero or unique; or do it on the host in a step closure."
            ) from error
        node_args, node_kwargs = pytree.tree_map_only(CsxTensor, lambda t: t._node, (args, kwargs))
        is_draw = torch.Tag.nondeterministic_seeded in func.tags
        values = self.draw_order.again(func, node_args, out) if is_draw else None
        if values is not None and func is aten.native_dropout.default:
            return self._dropped(args, values)
        if values is not None:
            values.meta["val"] = out
            func = aten.copy_.default if func._schema.is_mutable else aten.clone.default
            node_args, node_kwargs = (node_args[0], values) if func is aten.copy_.default else (values,), {}
        node = self.graph.call_function(func, node_args, node_kwargs)
        node.meta["val"], node.meta["line"], node.meta["scope"] = out, user_line(), context.scope
        node.meta["pol"], node.meta["in_optimizer"] = context.pol, self.scalars.in_optimizer
        if is_draw and values is None:
            self.draw_order.add(func, node)
        handles = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, CsxTensor)]
        wrapped = self._wrap(out, node, {id(t._fake): t for t in handles})
        changed = mutated_arguments(func, plain_args, plain_kwargs)
        in_place = changed and func._schema.is_mutable
        if in_place and isinstance(changed[0], torch.Tensor) and not isinstance(changed[0], CsxTensor):
            return changed[0]
        return return_and_correct_aliasing(func, args, kwargs, wrapped)

    def _dropped(self, args: tuple[Any, ...], mask: fx.Node) -> Any:
        """`native_dropout` with a mask that was drawn before."""
        source, probability = args[0], args[1]
        keep = CsxTensor(mask.meta["val"], host=False)
        keep._recorder, keep._node = self, mask
        kept = self.record(aten.mul.Tensor, (source, keep), {})
        scale = 0.0 if probability == 1 else 1 / (1 - probability)
        return self.record(aten.mul.Tensor, (kept, scale), {}), keep

    def _note_write(self, handle: CsxTensor) -> None:
        """Mark the input whose memory `handle` is, or views, as changed by the program."""
        assert handle._fake is not None
        for entry in self._by_storage.get(handle._fake.untyped_storage()._cdata, ()):
            entry.mutated = True

    def _wrap(self, out: Any, node: fx.Node, known: dict[int, CsxTensor]) -> Any:
        if isinstance(out, torch.Tensor):
            if id(out) in known:
                known[id(out)]._node = node
                return known[id(out)]
            made = CsxTensor(out, host=False)
            made._recorder, made._node = self, node
            return made
        if isinstance(out, (list, tuple)):
            parts = []
            for index, part in enumerate(out):
                item = node
                if isinstance(part, torch.Tensor):
                    item = self.graph.call_function(operator.getitem, (node, index))
                    item.meta["val"] = part
                parts.append(self._wrap(part, item, known))
            return type(out)(parts)
        return out


def _memory(tensor: torch.Tensor) -> int | None:
    return storage_id(tensor) if tensor.layout is torch.strided else None
