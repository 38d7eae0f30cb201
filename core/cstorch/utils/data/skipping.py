"""The default for loaders without a state of their own: they go on by skipping what was streamed of their epoch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from cstorch.errors import DataError
from cstorch.utils.data.generators import generator_states, generators_kept, set_generator_states
from cstorch.utils.data.wrapped import WrappedLoader

SKIPPED = "__cstorch_skipped__"
"""The key of the number of batches in such a state."""


class SkippingLoader(WrappedLoader):
    """Makes any iterable restartable.

    Its state is the number of batches streamed of the present epoch, with the states of the random number generators
    when the epoch began: an order that they decide is repeated, and what was streamed of it is left out. The
    generators themselves are not changed by that.

    Args:
        loader: The iterable.

    Attributes:
        is_spent: Whether it is an iterator, which an epoch uses up.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._epoch: dict[str, Any] = {}
        self._streamed = self._skips = 0
        self.is_spent = False

    @property
    def goes_on(self) -> bool:
        """Whether the next epoch is one that began in an earlier run."""
        return self._skips > 0

    def __iter__(self) -> Iterator[Any]:
        skips, self._skips = self._skips, 0
        if skips:
            with generators_kept():
                set_generator_states(self._epoch)
                batches = iter(self.wrapped)
                skipped = sum(1 for _ in itertools.islice(batches, skips))
            if skipped < skips:
                raise DataError(
                    f"{skips} batches of the epoch were to be skipped to go on where the earlier run stopped, but the "
                    f"dataloader ended after {skipped}. Go on with the same data, or without the dataloader's state."
                )
        else:
            self._epoch = generator_states()
            batches = iter(self.wrapped)
        self._streamed = skips
        self.is_spent = batches is self.wrapped
        return self._count(batches)

    def _count(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self._streamed += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """How far the epoch is, and the generators at its beginning."""
        return {SKIPPED: self._streamed, "epoch": self._epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin the next epoch by skipping."""
        self._epoch, self._streamed = state_dict["epoch"], int(state_dict[SKIPPED])
        self._skips = self._streamed


def is_skipping(state: Any) -> bool:
    """Whether `state` is that of a loader without one of its own."""
    return SKIPPED in state
