"""The small programs that tests train, and the comparison of two runs."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cstorch
import pytest
import torch
import torch.nn.functional as F
from cstorch.device import CsxTensor
from torch import nn


class TinyGpt(nn.Module):
    """Two blocks with causal attention; the output layer is tied to the embedding."""

    def __init__(self, vocabulary: int = 31, width: int = 16, length: int = 8) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width, bias=False),  # a key's bias has no gradient but noise
                    "out": nn.Linear(width, width),
                    "norm2": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.positions
        for block in self.blocks:
            q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in block["qkv"](block["norm1"](h)).chunk(3, -1))
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + block["out"](attended.transpose(1, 2).flatten(2))
            h = h + block["down"](F.gelu(block["up"](block["norm2"](h))))
        return self.head(self.norm(h)).flatten(0, 1)


def mlp(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(dropout), nn.Linear(16, 4))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),  # a bias before batch norm has no gradient but noise
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 16, 4),
    )


@dataclass(frozen=True)
class Task:
    """A model and its batches."""

    model: Callable[[], nn.Module]
    batches: Callable[[int], list[tuple[torch.Tensor, torch.Tensor]]]


def _batches(shape: tuple[int, ...], classes: int) -> Callable[[int], list[tuple[torch.Tensor, torch.Tensor]]]:
    def make(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(7)
        return [
            (torch.randn(shape, generator=generator), torch.randint(classes, shape[:1], generator=generator))
            for _ in range(count)
        ]

    return make


def _tokens(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    made = torch.randint(31, (count, 2, 4, 8), generator=generator)
    return [(pair[0], pair[1].flatten()) for pair in made]


TASKS = {
    "mlp": Task(mlp, _batches((6, 8), 4)),
    "cnn": Task(cnn, _batches((6, 3, 8, 8), 4)),
    "gpt": Task(TinyGpt, _tokens),
}

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=3e-3, weight_decay=0.01),
    "adam-amsgrad": lambda p: torch.optim.Adam(p, lr=3e-3, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=3e-3),
}


class Side:
    """One of two runs that a test compares: plain PyTorch on the cpu, or a traced step on csx.

    Attributes:
        device: "cpu" or "csx".
        seen: What `see` was given, step by step.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.seen: list[Any] = []
        self.programs: list[Any] = []
        self._see = cstorch.step_closure(self.seen.append)

    def trace(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The decorator of the step."""
        if self.device == "cpu":
            return step
        made = cstorch.trace(step)
        self.programs.append(made)
        return made

    def see(self, *values: Any) -> None:
        """Note values, in the step or in the loop around it."""
        if self.device == "csx":
            self._see(values)
        else:
            self.seen.append(_contents(values))

    @property
    def count(self) -> int:
        """How many programs the traced steps have become."""
        return sum(len(step.programs) for step in self.programs)


def batches(count: int, *shape: int, scale: float = 1.0) -> list[torch.Tensor]:
    """The same random batches at every call."""
    generator = torch.Generator().manual_seed(1)
    return [scale * torch.randn(shape, generator=generator) for _ in range(count)]


def same_as_eager(train: Callable[[Side], Any], rtol: float = 1e-5, atol: float = 1e-6, seed: int = 4) -> Side:
    """Run `train` on the cpu and on csx and compare what it sees and what it returns.

    Of modules every parameter, buffer and gradient is compared, of optimizers their whole state; gradients that
    a program has consumed on csx are not there to compare.

    Returns:
        The run on csx.
    """
    sides = Side("cpu"), Side("csx")
    left = []
    for side in sides:
        torch.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the step .* is traced again")
            left.append(_contents({"returned": train(side), "seen": side.seen}))
    _compare("", left[1], left[0], {"rtol": rtol, "atol": atol})
    return sides[1]


def trains_as_eager(
    body: Callable[..., Any],
    model: Callable[[], nn.Module] = mlp,
    optimizer: Callable[..., torch.optim.Optimizer] = lambda p: torch.optim.AdamW(p, lr=0.02),
    steps: int = 5,
    between: Callable[..., Any] | None = None,
    **tolerance: float,
) -> Side:
    """`same_as_eager` of a usual training loop with a decaying learning rate.

    Args:
        body: The traced step, called with the side, the model, the optimizer, a batch of shape (4, 8) and its index.
        model: Makes the model.
        optimizer: Makes the optimizer of its parameters.
        steps: How many.
        between: Called with the same arguments after each step, in the loop body.
        tolerance: rtol and atol.
    """

    def train(run: Side) -> Any:
        net = model().to(run.device)
        made = optimizer(net.parameters())
        schedule = torch.optim.lr_scheduler.LambdaLR(made, decay)

        @run.trace
        def step(x: torch.Tensor, i: int) -> Any:
            return body(run, net, made, x, i)

        for i, x in enumerate(batches(steps, 4, 8)):
            step(x, i)
            if between is not None:
                between(run, net, made, x, i)
            schedule.step()
        return net, made

    return same_as_eager(train, **tolerance)


def _contents(value: Any) -> Any:
    """`value` with plain cpu tensors for tensors, and dicts of them for modules and optimizers."""
    if isinstance(value, nn.Module):
        gradients = {f"{name}.grad": p.grad for name, p in value.named_parameters()}
        return _contents({**value.state_dict(), **gradients})
    if isinstance(value, torch.optim.Optimizer):
        return _contents(value.state_dict())
    if isinstance(value, CsxTensor) and value._host is None:
        return ...
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: _contents(v) for key, v in value.items()}
    return [_contents(v) for v in value] if isinstance(value, (list, tuple)) else value


def _compare(name: str, found: Any, expected: Any, tolerance: dict[str, float]) -> None:
    if isinstance(expected, dict):
        assert list(found) == list(expected), f"{name}: {list(found)} instead of {list(expected)}"
        for key, value in expected.items():
            _compare(f"{name}.{key}", found[key], value, tolerance)
    elif isinstance(expected, list):
        _compare(name, dict(enumerate(found)), dict(enumerate(expected)), tolerance)
    elif found is ... and isinstance(expected, torch.Tensor):
        assert name.endswith(".grad"), f"{name} has no contents"
    elif isinstance(expected, (torch.Tensor, float)):
        torch.testing.assert_close(found, expected, **tolerance, equal_nan=True, msg=lambda m: f"{name}: {m}")
    else:
        assert found == expected, f"{name}: {found!r} instead of {expected!r}"


def line_of(function: Callable[..., Any], text: str) -> str:
    """`file:line` of the line of `function` that contains `text`."""
    lines, start = inspect.getsourcelines(function)
    (offset,) = [i for i, line in enumerate(lines) if text in line]
    return f"{inspect.getsourcefile(function)}:{start + offset}"


def linear() -> tuple[nn.Module, Any]:
    """A linear layer and what `cstorch.compile` makes of it."""
    model = nn.Linear(8, 4)
    return model, cstorch.compile(model)


def to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu()


@dataclass
class Run:
    """What a training run leaves."""

    losses: list[float]
    state: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    python_calls: int


def decay(step: int) -> float:
    return 1 / (1 + 0.2 * step)


def train_eager(task: Task, optimizer_name: str, steps: int) -> Run:
    """Plain PyTorch on the cpu: the truth."""
    torch.manual_seed(3)
    model = task.model()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, decay)
    losses = []
    for x, y in task.batches(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return Run(losses, model.state_dict(), optimizer.state_dict(), steps)


def train_csx(task: Task, optimizer_name: str, steps: int) -> Run:
    """The same on the current CSX backend, through the executor."""
    torch.manual_seed(3)
    model = task.model()
    compiled = cstorch.compile(model)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, decay)
    losses: list[float] = []
    calls = [0]

    @cstorch.trace
    def training_step(batch):
        calls[0] += 1
        x, y = batch
        optimizer.zero_grad()
        loss = F.cross_entropy(compiled(x), y)
        loss.backward()
        optimizer.step()
        return loss

    @cstorch.step_closure
    def keep(loss):
        losses.append(loss.item())

    loader = cstorch.utils.data.DataLoader(lambda: task.batches(steps))
    for batch in cstorch.utils.data.DataExecutor(loader, num_steps=steps):
        keep(training_step(batch))
        schedule.step()
    state = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    return Run(losses, state, optimizer.state_dict(), calls[0])


def assert_equal_runs(truth: Run, run: Run, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Losses, every weight and buffer, every optimizer state tensor."""
    torch.testing.assert_close(torch.tensor(run.losses), torch.tensor(truth.losses), rtol=rtol, atol=atol)
    assert run.state.keys() == truth.state.keys()
    for name, expected in truth.state.items():
        torch.testing.assert_close(run.state[name], expected, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
    assert run.optimizer["state"].keys() == truth.optimizer["state"].keys()
    for index, state in truth.optimizer["state"].items():
        assert run.optimizer["state"][index].keys() == state.keys()
        for key, expected in state.items():
            found = run.optimizer["state"][index][key]
            torch.testing.assert_close(found.cpu(), expected, rtol=rtol, atol=atol, msg=lambda m, k=key: f"{k}: {m}")


def fail_in_a_step(csx: Any, model: nn.Module) -> None:
    """Trace a step that calls `model` and then raises."""
    cstorch.compile(model, csx)

    @cstorch.trace
    def step(x: torch.Tensor) -> None:
        model(x)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        step(torch.ones(2))
