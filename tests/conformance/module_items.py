"""torch's database of modules (`module_db`) as conformance items: three training steps on csx against the cpu.

An item is a module class in training or evaluation mode. For each of its sample inputs the module takes three
steps with momentum and another learning rate in each; outputs, weights and buffers are compared after every step.
"""

from __future__ import annotations

import copy
import unittest
import warnings
from collections.abc import Callable
from typing import Any

import cstorch
import torch
from harness import SAMPLES, check_all
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

STEPS = 3


def items() -> list[tuple[str, Callable[[], None]]]:
    """Every module of the database, in both modes."""
    return [
        (f"{info.name}/{'train' if training else 'eval'}", _item(info, training))
        for info in module_db
        for training in (True, False)
    ]


def _item(info: Any, training: bool) -> Callable[[], None]:
    def run() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _check(info, training)

    return run


def _check(info: Any, training: bool) -> None:
    def check(number: int, sample: Any) -> None:
        if sample.forward_input is None:
            raise unittest.SkipTest("a module without a forward")
        try:
            _check_sample(info, sample, training)
        except AssertionError:
            # Rounding that grows from step to step is no error: it shrinks with the precision, an error does not.
            _check_sample(info, _samples(info, training, torch.float64)[number], training)

    check_all(_samples(info, training)[:SAMPLES], check)


def _samples(info: Any, training: bool, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(1)
    return list(info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training))


def _check_sample(info: Any, sample: Any, training: bool) -> None:
    torch.manual_seed(2)
    constructor = sample.constructor_input
    module = info.module_cls(*constructor.args, **constructor.kwargs).train(training)
    values, spec = pytree.tree_flatten((sample.forward_input.args, sample.forward_input.kwargs))
    try:
        truth = _train(copy.deepcopy(module), values, spec, traced=False)
    except Exception as error:
        raise unittest.SkipTest(f"plain PyTorch: {type(error).__name__}: {error}") from error
    found = _train(copy.deepcopy(module), values, spec, traced=True)
    assert len(found) == len(truth)
    for step, (a, b) in enumerate(zip(found, truth, strict=True)):
        assert a.keys() == b.keys(), f"step {step}: {set(a) ^ set(b)} on one side only"
        for key, expected in b.items():
            torch.testing.assert_close(
                a[key], expected, equal_nan=True, check_device=False, msg=lambda m, s=step, k=key: f"step {s}, {k}: {m}"
            )


def _train(module: Any, values: list[Any], spec: Any, traced: bool) -> list[dict[str, torch.Tensor]]:
    if traced:
        cstorch.compile(module)
    parameters = [p for p in module.parameters() if p.requires_grad and p.dtype.is_floating_point]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9) if parameters else None
    tensors = [i for i, v in enumerate(values) if isinstance(v, torch.Tensor)]
    seen: list[dict[str, torch.Tensor]] = []

    def step(inputs: list[torch.Tensor]) -> None:
        leaves = list(values)
        for i, tensor in zip(tensors, inputs, strict=True):
            leaves[i] = tensor.detach().requires_grad_(values[i].requires_grad)
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        outputs = [t for t in pytree.tree_leaves(module(*args, **kwargs)) if isinstance(t, torch.Tensor)]
        ends = [t for t in outputs if t.requires_grad]
        gradients = []
        if ends:
            if optimizer is not None:
                optimizer.zero_grad()
            sum((t.abs() if t.is_complex() else t).square().mean() for t in ends).backward()
            gradients = [leaves[i].grad for i in tensors if values[i].requires_grad]
            if optimizer is not None:
                optimizer.step()
        note([t.detach() for t in outputs], [g for g in gradients if g is not None])

    @cstorch.step_closure
    def note(outputs: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        found = {f"output {i}": t for i, t in enumerate(outputs)}
        found |= {f"gradient {i}": t for i, t in enumerate(gradients)}
        found |= {name: t.detach().cpu().clone() for name, t in module.state_dict().items() if hasattr(t, "detach")}
        seen.append(found)

    run = cstorch.trace(step) if traced else step
    for number in range(STEPS):
        torch.manual_seed(10 + number)
        inputs = []
        for i in tensors:
            value = values[i].detach().clone()
            inputs.append(value + 0.1 * number if value.dtype.is_floating_point and values[i].requires_grad else value)
        if optimizer is not None:
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + number)
        run(inputs)
    return seen
