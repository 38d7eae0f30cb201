"""A small GPT in plain PyTorch, within what the real system is known to take: no fused attention, no slices."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from configuration import Config
from data import VOCABULARY
from torch import nn


class Attention(nn.Module):
    """Causal self-attention with a Linear each for queries, keys and values."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.query, self.key, self.value, self.out = (nn.Linear(config.width, config.width) for _ in range(4))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads) + mask
        mixed = self.dropout(scores.softmax(-1)) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a feed-forward network, each with a normalization before it and a residual around it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(2))
        self.up, self.down = nn.Linear(config.width, 4 * config.width), nn.Linear(4 * config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norms[0](x), mask))
        return x + self.dropout(self.down(F.gelu(self.up(self.norms[1](x)))))


class GPT(nn.Module):
    """Byte tokens [batch, length] to the log-probabilities of the bytes that follow, [batch, length, 256]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, config.width)
        self.positions = nn.Embedding(config.sequence_length, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width)
        self.apply(self._initialise)
        for block in self.blocks:  # so that the sum of all residuals starts at the scale of one
            for last in (block.attention.out, block.down):
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * config.depth))

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        mask = torch.where(places[:, None] >= places[None, :], 0.0, -math.inf)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x, mask)
        return F.log_softmax(F.linear(self.norm(x), self.tokens.weight).float(), -1)


def loss_of(log_probabilities: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean cross entropy, in nats a byte."""
    return -log_probabilities.gather(-1, labels.long().unsqueeze(-1)).mean()
