"""DataLoader: wraps the function that makes a dataloader, so that the device's workers can call it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from cstorch.errors import DataError

_ids = itertools.count()


class DataLoader:
    """Calls an input function and hands its batches to the device (`cerebras.pytorch.utils.data.DataLoader`).

    In this version the input function runs in this process.

    Args:
        input_fn: Returns a torch DataLoader or any iterable of nested tensors.
        *args: Passed to `input_fn`.
        **kwargs: Passed to `input_fn`.

    Raises:
        TypeError: `input_fn` is not callable.
    """

    def __init__(self, input_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if not callable(input_fn):
            raise TypeError(
                f"DataLoader got a {type(input_fn).__name__}, expected a function that returns a dataloader: "
                "cstorch.utils.data.DataLoader(input_fn, *args). Wrap an existing loader as lambda: loader."
            )
        self.input_fn = input_fn
        self.args, self.kwargs = args, kwargs
        self.id = next(_ids)
        self._loader: Any = None

    @property
    def dataloader(self) -> Any:
        """What `input_fn` returned; it is called when first needed."""
        if self._loader is None:
            self._loader = self.input_fn(*self.args, **self.kwargs)
            if not hasattr(self._loader, "__iter__"):
                raise DataError(
                    f"input_fn returned a {type(self._loader).__name__}, expected a torch DataLoader "
                    "or an iterable of batches."
                )
        return self._loader

    @property
    def batch_size(self) -> int | None:
        """The batch size, when the loader says it."""
        return getattr(self.dataloader, "batch_size", None)

    def __len__(self) -> int:
        return len(self.dataloader)

    def __iter__(self) -> Iterator[Any]:
        """One epoch. A generator that has ended is asked for again from `input_fn`."""
        loader = self.dataloader
        if iter(loader) is loader and getattr(self, "_spent", False):
            self._loader = loader = self.input_fn(*self.args, **self.kwargs)
        self._spent = True
        return iter(loader)

    def __copy__(self) -> DataLoader:
        return DataLoader(self.input_fn, *self.args, **self.kwargs)
