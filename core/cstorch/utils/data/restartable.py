"""The protocol of dataloaders that can be continued where an earlier run stopped, and how their states are combined."""

from __future__ import annotations

import inspect
from typing import Any, Protocol, runtime_checkable

from cstorch.distributed.streaming import Streamer, at_checkpoint, get_worker_state
from cstorch.errors import DataError
from cstorch.utils.data.sampler import DistributedSampler
from cstorch.utils.data.skipping import SKIPPED, SkippingLoader, is_skipping
from cstorch.utils.data.wrapped import WrappedLoader, unwrapped

_WORKERS = "__cstorch_workers__"


@runtime_checkable
class RestartableDataLoader(Protocol):
    """Defines the interface of restartable dataloaders (`cerebras.pytorch.utils.data.RestartableDataLoader`).

    Each worker calls `state_dict` at a checkpoint step; `aggregate_state_dict` makes one state of them, which
    is saved. When it is loaded, every worker calls `deaggregate_state_dict` and then `load_state_dict`.
    """

    def state_dict(self) -> dict[str, Any]:
        """The state of this worker; `cstorch.distributed.get_worker_state()` may be called in it.

        Returns:
            A dict of what `cstorch.save` takes.
        """
        ...

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Continue from a state.

        Args:
            state_dict: What `deaggregate_state_dict` returned for this worker.
            strict: Whether a state that does not match is an error; what matches is the implementation's to say.
        """
        ...

    def aggregate_state_dict(self, worker_states: list[dict[str, Any]]) -> dict[str, Any]:
        """Combine the states of all workers into the one that is saved.

        Args:
            worker_states: What `state_dict` returned in each worker, in the order of their ids.

        Returns:
            A dict of what `cstorch.save` takes.
        """
        ...

    def deaggregate_state_dict(self, aggregated_state_dict: dict[str, Any], strict: bool = True) -> dict[str, Any]:
        """The state for this worker, out of the one that was saved.

        Args:
            aggregated_state_dict: What `aggregate_state_dict` returned.
            strict: Whether a state that does not match is an error.

        Returns:
            What `load_state_dict` of this worker takes.
        """
        ...


class _SampledLoader(WrappedLoader):
    """Makes a torch DataLoader over a `DistributedSampler` restartable: its state is the samples streamed so far."""

    def __init__(self, loader: Any, sampler: DistributedSampler) -> None:
        super().__init__(loader)
        self._sampler = sampler

    @property
    def batch_size(self) -> int | None:
        """The batch size, also where the sampler makes the batches."""
        return self._sampler.batch_size or self.wrapped.batch_size

    def __iter__(self) -> Any:
        return iter(self.wrapped)

    @property
    def goes_on(self) -> bool:
        """Whether this worker streamed some of the epoch that comes next in an earlier run."""
        return self._sampler.has_begun

    def state_dict(self) -> dict[str, Any]:
        """What came before this run, and what this worker has streamed in it."""
        return {"before": self._sampler.samples_before, "streamed": get_worker_state().samples_streamed}

    def aggregate_state_dict(self, worker_states: list[dict[str, Any]]) -> dict[str, Any]:
        """The samples that all workers have streamed."""
        streamed = sum(state["streamed"] for state in worker_states)
        return {"samples_streamed": worker_states[0]["before"] + streamed}

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Go on after the samples streamed before; the number of workers may be another.

        Raises:
            DataError: the state is that of another kind of loader.
        """
        if "samples_streamed" not in state_dict:
            raise _of_another_loader(state_dict, self.wrapped)
        self._sampler.set_state(state_dict["samples_streamed"])


def as_restartable(loader: Any) -> Any:
    """`loader` where it has a state of its own, otherwise a restartable loader around it."""
    if all(callable(getattr(loader, name, None)) for name in ("state_dict", "load_state_dict")):
        return loader
    for sampler in (getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
        if isinstance(sampler, DistributedSampler):
            return _SampledLoader(loader, sampler)
    return SkippingLoader(loader)


def worker_state(loader: Any, streamer: Streamer, step: int, batch_size: int | None, before: int = 0) -> dict[str, Any]:
    """The state of the loader of one worker after `step` steps of the run, and `before` steps of earlier runs."""
    with at_checkpoint(streamer.checkpoint(step, batch_size, before)):
        state: dict[str, Any] = loader.state_dict()
    return state


def combines(loader: Any) -> bool:
    """Whether `loader` makes one state of those of all workers itself."""
    return callable(getattr(loader, "aggregate_state_dict", None))


def combine(loader: Any, states: list[dict[str, Any]]) -> dict[str, Any]:
    """One state out of those of all workers, in order of their ranks."""
    return loader.aggregate_state_dict(states) if combines(loader) else {_WORKERS: states}


def restore(loader: Any, state: dict[str, Any], streamer: Streamer, strict: bool = True) -> None:
    """Make the loader of one worker go on from a combined state.

    Raises:
        DataError: the state is of another kind of loader, or of another number of workers.
    """
    if _WORKERS in state:
        states = state[_WORKERS]
        if len(states) != streamer.total:
            raise DataError(
                f"the dataloader's state is that of {len(states)} workers, and this run has {streamer.total}. Use as "
                "many workers, or return a loader that can share out its data anew: one with aggregate_state_dict() "
                "and deaggregate_state_dict(), or a torch DataLoader over a cstorch DistributedSampler."
            )
        mine = states[streamer.rank]
    elif callable(deaggregate := getattr(loader, "deaggregate_state_dict", None)):
        mine = deaggregate(state, **_strict(deaggregate, strict))
    else:
        mine = state
    if is_skipping(mine) is not isinstance(loader, SkippingLoader):
        raise _of_another_loader(mine, unwrapped(loader))
    load = loader.load_state_dict
    load(mine, **_strict(load, strict))


def _of_another_loader(state: dict[str, Any], loader: Any) -> DataError:
    return DataError(
        f"the state to go on from (with {', '.join(map(repr, list(state)[:5]))}) was saved by another kind of "
        f"dataloader than the {type(loader).__name__} that input_fn returns now. Return one of the same kind as in the "
        "run that saved it, or go on without the dataloader's state."
    )


def batches_to_skip(state: dict[str, Any]) -> int | None:
    """The most batches that a loader is to skip which goes on from a combined state; None where it has its own."""
    skipping = [int(own[SKIPPED]) for own in state.get(_WORKERS, ()) if is_skipping(own)]
    return max(skipping, default=None)


def _strict(function: Any, strict: bool) -> dict[str, bool]:
    """`strict` for functions that take it: torchdata's `load_state_dict` does not."""
    return {"strict": strict} if "strict" in inspect.signature(function).parameters else {}
