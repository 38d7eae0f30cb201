"""Steps that fetch their own batch (`dataloader_iter`): it is fetched before the step, which gets it as its argument.

The Python of a step runs once, so the iterator cannot be part of it. In its place a traced step is given one that
yields the batch of the call, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from lightning_cerebras._core.private import is_fetcher


class Fetched(NamedTuple):
    """What `next(dataloader_iter)` returns, as an argument of a traced step."""

    batch: Any
    batch_idx: int
    dataloader_idx: int


class OneBatch:
    """The `dataloader_iter` of a step that is being traced.

    Args:
        name: The name of the step, for messages.
        fetched: What the step gets of it.
    """

    def __init__(self, name: str, fetched: Fetched) -> None:
        self._name, self._fetched = name, fetched
        self.is_taken = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> tuple[Any, int, int]:
        """The batch, its index and that of its dataloader.

        Raises:
            ValueError: the step has taken it already.
        """
        if self.is_taken:
            raise ValueError(
                f"{self._name} takes a second batch of dataloader_iter. With accelerator='csx' a step gets one batch "
                "at each call: its Python runs once. Take one with next(dataloader_iter), not in a loop; for several "
                "batches in a step, let the dataset or the collate_fn put them together, or take batch and batch_idx "
                "and use accumulate_grad_batches."
            )
        self.is_taken = True
        return tuple(self._fetched)


def fetch(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a step before it is called: the next batch in the place of `dataloader_iter`.

    Args:
        arguments: What Lightning calls the step with.

    Raises:
        StopIteration: the data has ended, on which Lightning's loops end.
    """
    return tuple([Fetched(*next(argument)) if is_fetcher(argument) else argument for argument in arguments])


def refuse_accumulation(arguments: Any, batches: int) -> None:
    """Refuse to accumulate gradients over the batches that a step fetches itself.

    Args:
        arguments: What Lightning calls the step with.
        batches: The Trainer's `accumulate_grad_batches`.

    Raises:
        ValueError: the step takes `dataloader_iter`, and there are several.
    """
    if batches > 1 and any(map(is_fetcher, arguments)):
        raise ValueError(
            f"training_step takes dataloader_iter, and accumulate_grad_batches is {batches}. Lightning learns the "
            "index of such a batch only after the step, so it clears gradients one batch late. Take batch and "
            "batch_idx, or accumulate with manual optimisation."
        )


def hand_over(name: str, arguments: tuple[Any, ...], step: Any) -> Any:
    """Call a step that is being traced, with an iterator over the batch that was fetched for it.

    Args:
        name: Its name, for messages.
        arguments: What `fetch` made, as the traced step received it.
        step: The step.

    Raises:
        ValueError: it takes no batch, or more than one.
    """
    given = tuple(OneBatch(name, argument) if isinstance(argument, Fetched) else argument for argument in arguments)
    result = step(*given)
    if any(isinstance(argument, OneBatch) and not argument.is_taken for argument in given):
        raise ValueError(
            f"{name} takes no batch of dataloader_iter, expected one. With accelerator='csx' the batch is fetched "
            "before the step, so one that is not taken would be lost. Call next(dataloader_iter) once in each step."
        )
    return result
