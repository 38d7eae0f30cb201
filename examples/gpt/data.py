"""Byte tokens of real text that is on every machine: the reference of the Python language, as `help()` shows it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import cerebras.pytorch.distributed as dist
import torch
from configuration import Config

VOCABULARY = 256


@functools.cache
def text(split: str) -> torch.Tensor:
    """The bytes of a split: the last tenth is for evaluation."""
    from pydoc_data.topics import topics

    tokens = torch.frombuffer(bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8)
    border = len(tokens) * 9 // 10
    return tokens[:border] if split == "train" else tokens[border:]


def batches(split: str, config: Config, first: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The input function: batches from number `first` on, without an end.

    Batch n is a function of n alone, so a run that is resumed sees what it would have seen, and each of several
    streaming workers makes its own share.

    Yields:
        Tokens and the tokens that follow them, each int32 [batch_size, sequence_length].
    """
    tokens = text(split)
    places = torch.arange(config.sequence_length + 1)
    rank, workers = (dist.get_streaming_rank(), dist.num_streamers()) if dist.is_streamer() else (0, 1)
    for number in itertools.count(first + rank, workers):
        source = torch.Generator().manual_seed(config.seed * 1_000_003 + number)
        starts = torch.randint(len(tokens) - config.sequence_length, (config.batch_size, 1), generator=source)
        window = tokens[starts + places].int()
        yield window[:, :-1].contiguous(), window[:, 1:].contiguous()
