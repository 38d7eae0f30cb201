"""The workloads that the step benchmark trains: model, optimizer and batches, the same for every peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Workload:
    """A training task.

    Attributes:
        name: For the table.
        model: Makes the model.
        batch: Makes a batch of inputs and labels.
        steps: Steps in one timed round.
    """

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    steps: int


def mlp() -> nn.Module:
    blocks = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256))]
    return nn.Sequential(*blocks, nn.Linear(256, 10))


def cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for inside, outside in ((3, 32), (32, 64), (64, 64)):
        layers += [
            nn.Conv2d(inside, outside, 3, padding=1),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, 10))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("index", torch.arange(length), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions(self.index)))).flatten(0, 1)


def tokens(vocabulary: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(vocabulary, shape), torch.randint(vocabulary, shape).flatten()


WORKLOADS = [
    Workload("tiny", lambda: nn.Linear(4, 4), lambda: (torch.randn(8, 4), torch.randint(4, (8,))), 2000),
    Workload("mlp", mlp, lambda: (torch.randn(32, 256), torch.randint(10, (32,))), 150),
    Workload("cnn", cnn, lambda: (torch.randn(32, 3, 32, 32), torch.randint(10, (32,))), 15),
    Workload("gpt-s", lambda: Gpt(4, 128, 4, 256, 64), lambda: tokens(256, 8, 64), 15),
    Workload("gpt-m", lambda: Gpt(6, 384, 6, 4096, 128), lambda: tokens(4096, 4, 128), 3),
]
