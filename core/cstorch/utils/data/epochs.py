"""Calls an input function, and takes batches from what it returns, epoch after epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cstorch.errors import DataError
from cstorch.utils.data.restartable import as_restartable


def make_loader(input_fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What `input_fn` returns, checked.

    Raises:
        DataError: it cannot be iterated over.
    """
    loader = input_fn(*args, **kwargs)
    if not hasattr(loader, "__iter__"):
        raise DataError(
            f"input_fn returned a {type(loader).__name__}, expected a torch DataLoader or an iterable of batches."
        )
    return as_restartable(loader)


def length_of(loader: Any) -> int | None:
    """The batches of an epoch, or None for a loader without a length."""
    try:
        return len(loader)
    except TypeError:
        return None


def epochs(input_fn: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Callable[[], Iterator[Any]], Any]:
    """A function that gives the endless stream of batches, and the loader of its first epoch.

    A loader that ends is started again; a generator, which cannot be, is asked for again from `input_fn`.

    Raises:
        DataError: in the stream: an epoch has no batch.
    """
    first = make_loader(input_fn, args, kwargs)

    def stream() -> Iterator[Any]:
        loader = first
        empty = 0
        while True:
            empty += 1
            batches = iter(loader)
            for batch in batches:
                empty = 0
                yield batch
            if empty == 2:  # one epoch may be empty: a run can go on where nothing was left of it for this worker
                name = getattr(input_fn, "__name__", "input_fn")
                raise DataError(
                    f"the dataloader of {name!r} yielded no batch. "
                    "Check that the dataset is not empty, and that drop_last does not drop its only batch."
                )
            if batches is loader:
                loader = make_loader(input_fn, args, kwargs)

    return stream, first
