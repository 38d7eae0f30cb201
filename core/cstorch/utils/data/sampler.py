"""DistributedSampler: the indices that this streamer reads, in an order that all streamers share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from cstorch.distributed.streaming import get_streaming_rank, is_streamer, num_streamers

pad_index = -1
"""The index that fills up the last batch under `pad_last`."""


class DistributedSampler(Sampler[Any]):
    """Yields the dataset's indices, each batch to one streamer in turn.

    The order of an epoch is drawn once for all streamers; batch b of it goes to streamer b mod n. One streamer
    alone, or a program that is none, reads everything.

    Args:
        data_source: A dataset with a length.
        shuffle: Whether each epoch is in an order of its own.
        seed: Seeds the orders; drawn from torch's generator by default, so give one where there are several streamers.
        start_index: So many samples of the stream, of all streamers together, were read before; they are skipped.
        shard: Whether streamers share the dataset. If not, each reads all of it.
        batch_size: Yield lists of so many indices; single indices by default.
        drop_last: Drop what does not fill a batch on every streamer.
        num_samples: Samples in an epoch; the dataset's length by default. More than that begins again.
        pad_last: Fill the last batch with `pad_index` rather than dropping it.

    Raises:
        ValueError: a number is out of range, or drop_last and pad_last are both asked for.
    """

    def __init__(
        self,
        data_source: Sized,
        shuffle: bool = True,
        seed: int | None = None,
        start_index: int = 0,
        shard: bool = True,
        batch_size: int | None = None,
        drop_last: bool = True,
        num_samples: int | None = None,
        pad_last: bool = False,
    ) -> None:
        for name, value, least in (
            ("start_index", start_index, 0),
            ("batch_size", batch_size, 1),
            ("num_samples", num_samples, 1),
        ):
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}, expected at least {least}.")
        if len(data_source) == 0:
            raise ValueError("the dataset is empty: its length is 0.")
        if pad_last and batch_size is None:
            raise ValueError("pad_last=True fills up batches: give a batch_size.")
        self.data_source, self.shuffle, self.shard = data_source, shuffle, shard
        self.seed = int(torch.randint(2**31, ()).item()) if seed is None and shuffle else seed or 0
        self.batch_size, self.drop_last, self.pad_last = batch_size, drop_last and not pad_last, pad_last
        self.num_samples = num_samples if num_samples is not None else len(data_source)
        self.epoch = 0
        self.set_state(start_index)

    def set_state(self, samples: int) -> None:
        """Go on after `samples` of the stream, of all streamers together."""
        self.samples_before = samples
        self.epoch, self._start = divmod(samples, self._usable()) if samples else (0, 0)
        self._turn = samples // (self.batch_size or 1)  # counted over all epochs and runs: streamers keep their turns

    def set_epoch(self, epoch: int) -> None:
        """The order of the next iteration is that of `epoch`."""
        self.epoch = epoch

    @property
    def _streamers(self) -> tuple[int, int]:
        if self.shard and is_streamer():
            return get_streaming_rank(), num_streamers()
        return 0, 1

    @property
    def has_begun(self) -> bool:
        """Whether this streamer has read some of the epoch that comes next."""
        rank, streamers = self._streamers
        done = self._start // (self.batch_size or 1)
        return any((self._turn - back) % streamers == rank for back in range(1, min(done, streamers) + 1))

    def _usable(self) -> int:
        """Samples of an epoch that are read by somebody."""
        whole = (self.batch_size or 1) * self._streamers[1]
        return self.num_samples // whole * whole if self.drop_last else self.num_samples

    def _order(self) -> list[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        size = len(self.data_source)
        passes = -(-self.num_samples // size)
        orders = (
            torch.randperm(size, generator=generator) if self.shuffle else torch.arange(size) for _ in range(passes)
        )
        return torch.cat(list(orders))[: self._usable()].tolist()

    def __iter__(self) -> Iterator[Any]:
        rank, streamers = self._streamers
        order = iter(self._order()[self._start :])
        self._start = 0
        self.epoch += 1
        size = self.batch_size or 1
        while batch := list(itertools.islice(order, size)):
            mine = self._turn % streamers == rank
            self._turn += 1
            if not mine:
                continue
            if self.pad_last:
                batch += [pad_index] * (size - len(batch))
            if self.batch_size is None:
                yield batch[0]
            else:
                yield batch

    def __len__(self) -> int:
        """Batches, or samples without a batch_size, of this streamer in a whole epoch."""
        rank, streamers = self._streamers
        batches = -(-self._usable() // (self.batch_size or 1))
        return (batches - rank + streamers - 1) // streamers
