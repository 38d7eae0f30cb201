"""Calls an input function, and takes batches from what it returns, epoch after epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cstorch.distributed.streaming import Streamer
from cstorch.errors import DataError
from cstorch.utils.data.generators import generator_states, generators_kept, same_states, set_generator_states
from cstorch.utils.data.restartable import as_restartable, restore
from cstorch.utils.data.skipping import SkippingLoader
from cstorch.utils.data.wrapped import WrappedLoader


def length_of(loader: Any) -> int | None:
    """The batches of an epoch, or None for a loader without a length."""
    try:
        return len(loader)
    except TypeError:
        return None


class Epochs:
    """What `input_fn` returns, iterated over as often as needed.

    A loader that ends is started again; an iterator, such as a generator, is asked for again from `input_fn`.

    Args:
        input_fn: The input function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Attributes:
        loader: The loader of the present epoch, made restartable.
        made: The states of the random number generators before it was made.
        begun: Whether an epoch has begun, in this run or the one it goes on from.

    Raises:
        DataError: what `input_fn` returns cannot be iterated over.
    """

    def __init__(self, input_fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._input_fn, self._args, self._kwargs = input_fn, args, kwargs
        self._make()
        self._restored = self.begun = False

    def _make(self) -> None:
        self._spent = False
        self.made = generator_states()
        loader = self._input_fn(*self._args, **self._kwargs)
        if not hasattr(loader, "__iter__"):
            raise DataError(
                f"input_fn returned a {type(loader).__name__}, expected a torch DataLoader or an iterable of batches."
            )
        self.loader = as_restartable(loader)

    def _renew(self) -> None:
        if self._spent:
            self._make()

    def random_state(self) -> dict[str, Any]:
        """What `restore` needs to know of random numbers."""
        return {"made": self.made, "begun": self.begun}

    def restore(
        self, state: dict[str, Any], streamer: Streamer, strict: bool, random_state: dict[str, Any] | None
    ) -> None:
        """Let the next stream go on from a combined state.

        Args:
            state: The state.
            streamer: Who takes the batches.
            strict: For the loader's `load_state_dict`.
            random_state: What `random_state` gave at that time. A loader that was made with other random numbers is
                made again with the same.

        Raises:
            DataError: the state is not one for this loader, or of another number of workers.
        """
        self._renew()
        self.begun = True
        if random_state is not None:
            self.begun = random_state["begun"]
            if not same_states(random_state["made"], self.made):
                with generators_kept():
                    set_generator_states(random_state["made"])
                    self._make()
        restore(self.loader, state, streamer, strict)
        self._restored = self.loader.goes_on if isinstance(self.loader, WrappedLoader) else self.begun

    def epoch(self) -> Iterator[Any]:
        """One epoch."""
        self._renew()
        self.begun = True
        batches: Iterator[Any] = iter(self.loader)
        self._spent = self.loader.is_spent if type(self.loader) is SkippingLoader else batches is self.loader
        return batches

    def stream(self) -> Iterator[Any]:
        """Batches without an end.

        Raises:
            DataError: an epoch has no batch.
        """
        empty = 0
        while True:
            empty += 1
            for batch in self._next_epoch():
                empty = 0
                yield batch
            if empty == 2:  # one epoch may be empty: a run can go on where nothing was left of it for this worker
                name = getattr(self._input_fn, "__name__", "input_fn")
                raise DataError(
                    f"the dataloader of {name!r} yielded no batch. "
                    "Check that the dataset is not empty, and that drop_last does not drop its only batch."
                )

    def _next_epoch(self) -> Iterator[Any]:
        if not self._restored:
            return self.epoch()
        self._restored = False
        with generators_kept():  # the earlier run has drawn the numbers that an epoch begins with
            return self.epoch()
