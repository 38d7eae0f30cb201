"""The conformance programs: each trains something small in a way that a backend may get wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from cstorch.testing.run import EagerRun

STEPS = 4


def _batches(*shape: int, count: int = STEPS) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


def _labels(size: int, classes: int, count: int = STEPS) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(classes, (size,), generator=generator) for _ in range(count)]


def _update(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _fit(
    run: EagerRun,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: list[Any],
    loss_of: Callable[..., torch.Tensor],
) -> Any:
    """Train with a decaying learning rate; the model and the optimizer."""
    call = run.prepare(model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)

    @run.trace
    def step(*batch: torch.Tensor) -> None:
        loss = loss_of(call, *batch)
        _update(optimizer, loss)
        run.see(loss)

    for batch in batches:
        step(*batch)
        schedule.step()
    return model, optimizer


def _cross_entropy(call: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(call(x), y)


def _mlp(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(dropout), nn.Linear(8, 3))


def linear_regression(run: EagerRun) -> Any:
    """Plain SGD: an update is `p - lr * grad`, with a learning rate that changes."""
    model = nn.Linear(6, 2)
    batches = list(zip(_batches(5, 6), _batches(5, 2), strict=True))
    return _fit(run, model, torch.optim.SGD(model.parameters(), lr=0.1), batches, lambda f, x, y: F.mse_loss(f(x), y))


def mlp_adamw(run: EagerRun) -> Any:
    """AdamW with its step counter and bias corrections."""
    model = _mlp()
    batches = list(zip(_batches(5, 6), _labels(5, 3), strict=True))
    return _fit(run, model, torch.optim.AdamW(model.parameters(), lr=0.05), batches, _cross_entropy)


def cnn_batch_norm(run: EagerRun) -> Any:
    """Convolution, pooling, running statistics; SGD with momentum and weight decay."""
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 9, 3),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True)
    return _fit(run, model, optimizer, list(zip(_batches(4, 2, 6, 6), _labels(4, 3), strict=True)), _cross_entropy)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.qkv = nn.Linear(8, 24, bias=False)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x)
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(h).chunk(3, -1))
        h = h + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.head(self.norm(h)).flatten(0, 1)  # type: ignore[no-any-return]


def tied_transformer(run: EagerRun) -> Any:
    """Causal attention, and an output layer whose weight is the embedding's."""
    model = _Attention()
    batches = [(y.unflatten(0, (3, 5)), y) for y in _labels(15, 11)]
    return _fit(run, model, torch.optim.Adam(model.parameters(), lr=0.02), batches, _cross_entropy)


def dropout_draws(run: EagerRun) -> Any:
    """Every step draws another mask, of the right density and scale. Which one is the backend's own business."""
    masks: list[torch.Tensor] = []

    def judge(dropped: torch.Tensor) -> None:
        kept = dropped != 0
        run.seen.append((round(kept.float().mean().item(), 1), dropped.max().item(), dropped.unique().tolist()))
        run.seen.append([torch.equal(kept, mask) for mask in masks])
        masks.append(kept)

    @run.trace
    def step(x: torch.Tensor) -> None:
        run.on_host(judge, F.dropout(x, 0.7))

    for _ in range(STEPS):
        step(torch.ones(4000))
    return None


def accumulated_gradients(run: EagerRun) -> Any:
    """Gradients that stay from one program to the next."""
    model = _mlp()
    call = run.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @run.trace
    def accumulate(x: torch.Tensor, y: torch.Tensor) -> None:
        loss = F.cross_entropy(call(x), y) / 2
        loss.backward()
        run.see(loss)

    @run.trace
    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    for index, (x, y) in enumerate(zip(_batches(5, 6, count=6), _labels(5, 3, count=6), strict=True)):
        accumulate(x, y)
        if index % 2:
            update()
    return model


def clipped_groups(run: EagerRun) -> Any:
    """Two param groups, the norm of all gradients, hyperparameters that the loop changes."""
    model = _mlp()
    call = run.prepare(model)
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": weights, "weight_decay": 0.1}, {"params": others, "lr": 0.02}], lr=0.05)

    @run.trace
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(call(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        run.see(loss, norm)

    for x, y in zip(_batches(5, 6), _labels(5, 3), strict=True):
        step(x, y)
        optimizer.param_groups[0]["lr"] *= 0.5
        optimizer.param_groups[1]["weight_decay"] += 0.05
    return model, optimizer


def train_and_evaluate(run: EagerRun) -> Any:
    """Two programs on the same weights: what one leaves the other sees."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    call = run.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @run.trace
    def train(x: torch.Tensor, y: torch.Tensor) -> None:
        _update(optimizer, F.cross_entropy(call(x), y))

    @run.trace
    def evaluate(x: torch.Tensor, y: torch.Tensor) -> None:
        with torch.no_grad():
            out = call(x)
            run.see(F.cross_entropy(out, y), (out.argmax(-1) == y).float().mean())

    for x, y in zip(_batches(5, 6), _labels(5, 3), strict=True):
        model.train()
        train(x, y)
        model.eval()
        evaluate(x, y)
    return model


def short_last_batch(run: EagerRun) -> Any:
    """A batch of another size makes a second program on the same state."""
    model = _mlp()
    sizes = (5, 5, 3, 5)
    pairs = [(x[:n], y[:n]) for n, x, y in zip(sizes, _batches(5, 6), _labels(5, 3), strict=True)]
    return _fit(run, model, torch.optim.Adam(model.parameters(), lr=0.05), pairs, _cross_entropy)


def integers_and_masks(run: EagerRun) -> Any:
    """Integer arithmetic, comparisons, sorting, gathering, cumulative sums."""

    @run.trace
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        order = x.argsort(-1, descending=True)
        best = torch.gather(x, 1, order[:, :2])
        share = torch.where(x > 0, x, torch.zeros_like(x)).cumsum(-1)
        counts = (y.unsqueeze(-1) == torch.arange(3)).sum(0)
        run.see(order, best, share, counts, y // 2, y % 2, x.topk(2).indices, (x > 0) & (x < 1))

    for x, y in zip(_batches(5, 6), _labels(5, 3), strict=True):
        step(x, y)
    return None


def numbers_as_arguments(run: EagerRun) -> Any:
    """A Python number that a step is called with is read at each call."""
    model = nn.Linear(6, 2)
    call = run.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @run.trace
    def step(x: torch.Tensor, index: int, weight: float) -> None:
        loss = call(x).square().mean() * weight + index
        _update(optimizer, loss)
        run.see(loss)

    for index, x in enumerate(_batches(5, 6)):
        step(x, index, 1.0 / (index + 1))
    return model


def host_reads_and_writes(run: EagerRun) -> Any:
    """Between steps the host averages the weights, changes them, and loads older ones."""
    model = nn.Linear(6, 2)
    call = run.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    average = torch.zeros(2, 6)

    @run.trace
    def step(x: torch.Tensor) -> None:
        loss = call(x).square().mean()
        _update(optimizer, loss)
        run.see(loss)

    kept = {name: value.cpu().clone() for name, value in model.state_dict().items()}
    for index, x in enumerate(_batches(5, 6, count=6)):
        step(x)
        average.mul_(0.9).add_(model.weight.detach().cpu(), alpha=0.1)
        with torch.no_grad():
            model.bias.mul_(0.5)
        if index == 3:
            model.load_state_dict(kept)
    return model, optimizer, average


def nested_results(run: EagerRun) -> Any:
    """What a step returns keeps its structure and stands for each step's own values."""

    @run.trace
    def step(x: torch.Tensor) -> dict[str, Any]:
        return {"sum": x.sum(), "parts": (x.mean(-1), [x.amax(), 3]), "again": x}

    for x in _batches(5, 6):
        found = step(x)
        run.see(found["parts"][0], found["parts"][1], found["sum"])
    return None


def mixed_precision(run: EagerRun) -> Any:
    """bfloat16 under autocast; the weights stay float32. Compared to two digits, as bfloat16 has."""
    model = nn.Linear(6, 2)
    call = run.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @run.trace
    def step(x: torch.Tensor) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = call(x)
        loss = out.float().square().mean()
        _update(optimizer, loss)
        run.on_host(lambda value, kind: run.seen.append((round(value.item(), 1), str(kind.dtype))), loss, out)

    for x in _batches(5, 6):
        step(x)
    return str(model.weight.dtype)


PROGRAMS: dict[str, Callable[[EagerRun], Any]] = {
    program.__name__: program
    for program in (
        linear_regression,
        mlp_adamw,
        cnn_batch_norm,
        tied_transformer,
        dropout_draws,
        accumulated_gradients,
        clipped_groups,
        train_and_evaluate,
        short_last_batch,
        integers_and_masks,
        numbers_as_arguments,
        host_reads_and_writes,
        nested_results,
        mixed_precision,
    )
}
"""The programs by name; the docstring of each says what it is for."""
