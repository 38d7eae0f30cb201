"""torch's database of optimizers (`optim_db`) as conformance items: training on csx against training on the cpu.

An item trains a small network for ten steps with one configuration of one optimizer, at another learning rate in
every step, and with other momenta and weight decay from the middle on. After every step the loss, each weight and
each entry of the optimizer's state_dict are compared with those of plain PyTorch on the cpu.
"""

from __future__ import annotations

import copy
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import cstorch
import torch
from torch import nn
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db

STEPS = 10
_VARIED = {"momentum": 0.5, "weight_decay": 1.5, "betas": 0.95, "alpha": 0.9, "rho": 0.9}
"""Numbers of a param_group that change in the middle, where they are not zero, and the factor."""

Trajectory = list[dict[str, Any]]


def items() -> list[tuple[str, Callable[[], None]]]:
    """Every configuration of every optimizer, with each of the flags that the optimizer knows.

    Returns:
        Names and functions. A function returns when csx gives what the cpu gives; it raises AssertionError when
        not, TraceError when csx refuses the optimizer, and SkipTest when plain PyTorch cannot run it.
    """
    found = []
    for info in optim_db:
        for given in info.optim_inputs_func(device="cpu"):
            for label, kwargs in _variants(info, given.kwargs):
                name = f"{info.name}[{given.desc}{label}]"
                found.append((name, _item(info, kwargs)))
    return found


def _variants(info: OptimizerInfo, kwargs: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "", kwargs
    flags = [f for f in info.supported_impls if f != "fused" or "cpu" in info.supports_fused_on]
    for flag in [*flags, *(["capturable"] if info.has_capturable_arg else [])]:
        yield f" & {flag}", {**kwargs, flag: True}
    if not isinstance(kwargs.get("lr"), torch.Tensor):
        yield " & tensor lr", {**kwargs, "lr": torch.tensor(kwargs.get("lr", 0.01))}


def _item(info: OptimizerInfo, kwargs: dict[str, Any]) -> Callable[[], None]:
    def run() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _check(info, kwargs)

    return run


def _check(info: OptimizerInfo, kwargs: dict[str, Any]) -> None:
    found, truth = _both(info, kwargs, torch.float32)
    try:
        _compare(found, truth)
    except AssertionError:
        # Rounding that grows from step to step is no error: it shrinks with the precision, an error does not.
        _compare(found, truth, rtol=1e-2, atol=1e-3)
        _compare(*_both(info, kwargs, torch.float64))


def _both(info: OptimizerInfo, kwargs: dict[str, Any], dtype: torch.dtype) -> tuple[Trajectory, Trajectory]:
    try:
        # Plain PyTorch takes `capturable` on accelerators only; it is another way to the same numbers.
        truth = _train("cpu", info, {k: v for k, v in kwargs.items() if k != "capturable"}, dtype)
    except Exception as error:
        raise unittest.SkipTest(f"plain PyTorch: {type(error).__name__}: {error}") from error
    return _train("csx", info, kwargs, dtype), truth


def _train(device: str, info: OptimizerInfo, kwargs: dict[str, Any], dtype: torch.dtype) -> Trajectory:
    torch.manual_seed(0)
    biased = info.name != "Muon"  # takes matrices only
    sparse = info.only_supports_sparse_grads
    first: nn.Module = nn.Embedding(7, 6, sparse=True) if sparse else nn.Linear(5, 6, bias=biased)
    last: list[nn.Module] = [] if sparse else [nn.Tanh(), nn.Linear(6, 3, bias=biased)]
    model = nn.Sequential(first, *last).to(dtype).to(device)
    optimizer = info.optim_cls(model.parameters(), **copy.deepcopy(kwargs))
    generator = torch.Generator().manual_seed(1)

    def training_step(x: torch.Tensor) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - 1).square().mean()
            loss.backward()
            return loss

        if info.step_requires_closure:
            return optimizer.step(closure)
        loss = closure()
        optimizer.step()
        return loss

    step = cstorch.trace(training_step) if device == "csx" else training_step
    trajectory: Trajectory = []

    @cstorch.step_closure
    def note(loss: torch.Tensor) -> None:
        state = {"loss": loss, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        trajectory.append(copy.deepcopy(_on_cpu(state)))

    for i in range(STEPS):
        _vary(optimizer, i)
        x = torch.randint(7, (4,), generator=generator) if sparse else torch.randn(4, 5, generator=generator).to(dtype)
        note(step(x))
    return trajectory


def _vary(optimizer: torch.optim.Optimizer, step: int) -> None:
    for group in optimizer.param_groups:
        start = group.setdefault("first_lr", float(group["lr"]))
        _assign(group, "lr", start * (1 - 0.05 * step))
        for key, factor in _VARIED.items():
            if step == STEPS // 2 and group.get(key):
                value = group[key]
                _assign(group, key, tuple(v * factor for v in value) if isinstance(value, tuple) else value * factor)


def _assign(group: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(group[key], torch.Tensor):
        group[key].fill_(value)
    else:
        group[key] = value


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(v) for key, v in value.items()}
    return [_on_cpu(v) for v in value] if isinstance(value, list) else value


def _compare(found: Trajectory, truth: Trajectory, **tolerance: float) -> None:
    assert len(found) == len(truth)
    for number, (a, b) in enumerate(zip(found, truth, strict=True)):
        for group in (*a["optimizer"]["param_groups"], *b["optimizer"]["param_groups"]):
            group.pop("capturable", None)
        torch.testing.assert_close(a, b, **tolerance, msg=lambda m, n=number: f"step {n}: {m}")
