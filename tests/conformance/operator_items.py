"""torch's database of operators (`op_db`) as conformance items: a traced step on csx against the cpu.

An item is an operator with a dtype. Each of its sample inputs goes through a traced step, forward and, where the
operator has a derivative, backward. The program runs with the sample that it was traced with, once more, and with
fresh values of the same shapes; every output and gradient is compared with eager PyTorch on the cpu.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import cstorch
import torch
from expected import ENLARGES_ROUNDING
from harness import SAMPLES, check_all
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
SEED = 42
"""Before every run; operators of the database that draw random numbers set this very seed themselves."""

SABOTAGE = os.environ.get("CONFORMANCE_SABOTAGE", "")
""" "stale" feeds replays the values of the trace, "disturbed" changes outputs: to see that the comparison bites."""

_UNSET = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})
"""Operators whose results have no defined values."""

Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def items() -> list[tuple[str, Callable[[], None]]]:
    """Every operator with each dtype that it takes on the cpu, and every in-place variant."""
    found = []
    for op in op_db:
        name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        for dtype in DTYPES:
            if dtype in op.supported_dtypes("cpu"):
                short = str(dtype).removeprefix("torch.")
                found.append((f"{name}/{short}", _item(op, dtype, op)))
                inplace = op.inplace_variant
                if inplace is not None:
                    found.append((f"{name}_/{short}", _item(op, dtype, _on_a_copy(inplace))))
    return found


def _on_a_copy(inplace: Callable[..., Any]) -> Call:
    """An in-place operator on a copy: the sample is a leaf, which autograd does not let be changed."""

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        return inplace(x.clone(), *args, **kwargs)

    return call


def _item(op: Any, dtype: torch.dtype, call: Any) -> Callable[[], None]:
    def run() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _check(op, dtype, call)

    return run


def _samples(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    torch.manual_seed(1)
    differentiable = dtype in op.supported_backward_dtypes("cpu") and op.supports_autograd
    made = op.sample_inputs("cpu", dtype, requires_grad=differentiable)
    return itertools.islice(made, SAMPLES)


def _check(op: Any, dtype: torch.dtype, call: Any) -> None:
    def check(number: int, sample: Any) -> None:
        try:
            _check_sample(op, call, sample)
        except AssertionError:
            if dtype is not torch.float32 or op.name not in ENLARGES_ROUNDING:
                raise
            _check_sample(op, call, sample, rtol=1e-2, atol=1e-3)
            _check_sample(op, call, next(itertools.islice(_samples(op, torch.float64), number, None)))

    check_all(_samples(op, dtype), check)


def _check_sample(op: Any, call: Any, sample: Any, **tolerance: float) -> None:
    values, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    program = _Step(call, values, spec)
    try:
        truth = program.on_cpu(values)
    except Exception as error:
        raise unittest.SkipTest(f"plain PyTorch: {type(error).__name__}") from error
    runs = [(values, truth), (values, truth)]
    for fresh in (_fresh(values, flip=True), _fresh(values, flip=False)):
        with contextlib.suppress(Exception):  # not every operator takes other integers
            runs.append((fresh, program.on_cpu(fresh)))
            break
    for number, (leaves, expected) in enumerate(runs):
        found = program.on_csx(values if SABOTAGE == "stale" else leaves)
        try:
            _compare(found, expected, op.name in _UNSET, f"run {number}", **tolerance)
        except AssertionError:
            if not any(isinstance(v, torch.Tensor) and v.dtype is torch.bfloat16 for v in leaves):
                raise
            if not _is_as_near(found, expected, program.on_cpu([_exact(v) for v in leaves])):
                raise


def _exact(value: Any) -> Any:
    is_rounded = isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16
    return value.detach().double().requires_grad_(value.requires_grad) if is_rounded else value


def _is_as_near(found: list[Any], eager: list[Any], exact: list[Any]) -> bool:
    """Whether bfloat16 results are nearly as close to those in float64 as eager is: both round, in their own order."""

    def error(values: list[Any]) -> list[float]:
        pairs = zip(values, exact, strict=True)
        return [(v.double() - e).abs().max().item() for v, e in pairs if isinstance(v, torch.Tensor) and v.numel()]

    return all(ours <= 2 * theirs for ours, theirs in zip(error(found), error(eager), strict=True))


def _fresh(values: list[Any], flip: bool) -> list[Any]:
    """Other values that the operator takes too: smaller ones keep a matrix definite and a probability below one."""

    def other(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return value
        if value.dtype.is_floating_point or value.dtype.is_complex:
            return (value.detach() * 0.97).requires_grad_(value.requires_grad)
        return value.flip(tuple(range(value.dim()))) if flip else value

    return [other(value) for value in values]


def _detached(leaves: list[Any]) -> list[Any]:
    return [v.detach().clone() if isinstance(v, torch.Tensor) else v for v in leaves]


class _Step:
    """One sample as a step: the operator's results and the gradients of its inputs."""

    def __init__(self, call: Any, values: list[Any], spec: Any) -> None:
        self._call, self._spec = call, spec
        self._constants = values
        self._tensors = [i for i, v in enumerate(values) if isinstance(v, torch.Tensor)]
        self._wants_grad = [i for i in self._tensors if values[i].requires_grad]
        self._step = cstorch.trace(self._traced)
        self._found: list[Any] = []
        self._structure: Any = None

    def compute(self, leaves: list[Any]) -> list[Any]:
        """Outputs and gradients; also what the traced step does."""
        leaves = list(leaves)
        for i in self._wants_grad:
            leaves[i] = leaves[i].detach().requires_grad_()
        x, args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        outputs = pytree.tree_leaves(self._call(x, *args, **kwargs))
        found = [t.detach() if isinstance(t, torch.Tensor) else t for t in outputs]
        ends = [t for t in outputs if isinstance(t, torch.Tensor) and t.requires_grad]
        if ends and self._wants_grad:
            wanted = [leaves[i] for i in self._wants_grad]
            weights = [torch.linspace(1, 2, t.numel(), device=t.device).view(t.shape).to(t.dtype) for t in ends]
            found += torch.autograd.grad(ends, wanted, weights, allow_unused=True)
        return found

    def on_cpu(self, leaves: list[Any]) -> list[Any]:
        """Outputs and gradients of eager PyTorch on copies of `leaves`."""
        torch.manual_seed(SEED)
        return self.compute(_detached(leaves))

    def _traced(self, tensors: list[torch.Tensor]) -> None:
        leaves = list(self._constants)
        for i, tensor in zip(self._tensors, tensors, strict=True):
            leaves[i] = tensor
        self._keep(self.compute(leaves))

    def _keep(self, found: list[Any]) -> None:
        take = self._found

        @cstorch.step_closure
        def keep(values: list[Any]) -> None:
            take[:] = values

        keep(found)

    def on_csx(self, leaves: list[Any]) -> list[Any]:
        """Outputs and gradients of the traced step on copies of `leaves`, traced at the first call."""
        torch.manual_seed(SEED)
        leaves = _detached(leaves)
        self._found.clear()
        self._step([leaves[i] for i in self._tensors])
        if SABOTAGE == "disturbed":
            return [t + 1 if isinstance(t, torch.Tensor) and t.dtype.is_floating_point else t for t in self._found]
        return list(self._found)


def _compare(found: list[Any], truth: list[Any], shapes_only: bool, where: str, **tolerance: float) -> None:
    assert len(found) == len(truth), f"{where}: {len(found)} results, expected {len(truth)}"
    for i, (a, b) in enumerate(zip(found, truth, strict=True)):
        if not isinstance(b, torch.Tensor):
            assert type(a) is type(b), f"{where}, result {i}: {a!r}, expected {b!r}"
            assert a == b or a != a, f"{where}, result {i}: {a!r}, expected {b!r}"
            continue
        assert isinstance(a, torch.Tensor), f"{where}, result {i}: {type(a).__name__}, expected a tensor"
        if shapes_only:
            assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{where}, result {i}: {a.shape} {a.dtype}"
            continue
        if b.layout is not torch.strided:
            a, b = a.to_dense(), b.to_dense()
        torch.testing.assert_close(
            a, b, equal_nan=True, check_device=False, msg=lambda m, n=i: f"{where}, result {n}: {m}", **tolerance
        )
