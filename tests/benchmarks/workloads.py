"""The workloads that the step benchmark trains: model, optimizer and batches, the same for every peer."""

from __future__ import annotations

import itertools
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


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.across = nn.Identity() if inside == outside else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.across(x) + self.norm2(self.second(F.relu(self.norm1(self.first(x))))))


def resnet() -> nn.Module:
    """A ResNet for 32 x 32 images: six blocks of 32 to 128 channels."""
    widths = (32, 32, 32, 64, 64, 128, 128)
    blocks = [Residual(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(widths)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), *blocks, *head)


class Lstm(nn.Module):
    """A language model of one LSTM layer, or GRU."""

    def __init__(self, kind: type[nn.Module], vocabulary: int = 256, width: int = 256) -> None:
        super().__init__()
        self.tokens, self.cells = nn.Embedding(vocabulary, 128), kind(128, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(self.tokens(x))[0]).flatten(0, 1)


class Vit(nn.Module):
    """A vision transformer for 32 x 32 images in patches of 4 x 4."""

    def __init__(self, layers: int = 6, width: int = 192, heads: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.positions = nn.Parameter(torch.randn(64, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2) + self.positions).mean(1))


class Dlrm(nn.Module):
    """A recommendation model: eight embedding tables of 20,000 rows, their products, and an MLP."""

    def __init__(self, tables: int = 8, rows: int = 20_000, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        pairs = tables * (tables - 1) // 2
        self.top = nn.Sequential(nn.Linear(tables * width + pairs, 256), nn.ReLU(), nn.Linear(256, 2))
        self.register_buffer("above", torch.triu_indices(tables, tables, 1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.stack([table(x[:, i]) for i, table in enumerate(self.tables)], 1)
        products = (rows @ rows.transpose(1, 2))[:, self.above[0], self.above[1]]
        return self.top(torch.cat([rows.flatten(1), products], 1))


def tokens(vocabulary: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(vocabulary, shape), torch.randint(vocabulary, shape).flatten()


WORKLOADS = [
    Workload("tiny", lambda: nn.Linear(4, 4), lambda: (torch.randn(8, 4), torch.randint(4, (8,))), 2000),
    Workload("mlp", mlp, lambda: (torch.randn(32, 256), torch.randint(10, (32,))), 150),
    Workload("cnn", cnn, lambda: (torch.randn(32, 3, 32, 32), torch.randint(10, (32,))), 15),
    Workload("gpt-s", lambda: Gpt(4, 128, 4, 256, 64), lambda: tokens(256, 8, 64), 15),
    Workload("gpt-m", lambda: Gpt(6, 384, 6, 4096, 128), lambda: tokens(4096, 4, 128), 3),
    Workload("resnet", resnet, lambda: (torch.randn(32, 3, 32, 32), torch.randint(10, (32,))), 4),
    Workload("lstm", lambda: Lstm(nn.LSTM), lambda: tokens(256, 32, 64), 5),
    Workload("gru", lambda: Lstm(nn.GRU), lambda: tokens(256, 32, 64), 5),
    Workload("vit", Vit, lambda: (torch.randn(16, 3, 32, 32), torch.randint(10, (16,))), 4),
    Workload("dlrm", Dlrm, lambda: (torch.randint(20_000, (256, 8)), torch.randint(2, (256,))), 50),
]
