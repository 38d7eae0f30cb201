"""SyntheticDataset: samples of given shapes and dtypes without a dataset behind them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from cstorch.tracing import nest


class SyntheticDataset(IterableDataset[Any]):
    """Generates samples from a specification (`cerebras.pytorch.utils.data.SyntheticDataset`).

    Iterating yields samples 0, 1, 2, ... Our addition: `dataset[i]` is sample i.

    Args:
        sample_spec: A nesting of list, tuple, NamedTuple, dict and OrderedDict whose leaves are tensors, which are
            cloned for each sample, or functions of the sample's index that return a tensor.
        num_samples: The size of the dataset; endless and without a length by default.

    Raises:
        TypeError: a leaf is neither a tensor nor callable; its place is named.
        ValueError: `num_samples` is not positive, or there is no leaf.
    """

    def __init__(self, sample_spec: Any, num_samples: int | None = None) -> None:
        if num_samples is not None and (isinstance(num_samples, bool) or not isinstance(num_samples, int)):
            raise TypeError(f"num_samples is {num_samples!r}, expected None or an int.")
        if num_samples is not None and num_samples < 1:
            raise ValueError(f"num_samples is {num_samples}, expected at least 1, or None for an endless dataset.")
        _check(sample_spec, "sample_spec")
        if not nest.leaves(sample_spec):
            raise ValueError("sample_spec has no tensor and no function in it.")
        self._spec, self._num_samples = sample_spec, num_samples

    def __getitem__(self, index: int) -> Any:
        if self._num_samples is not None and not -self._num_samples <= index < self._num_samples:
            raise IndexError(f"sample {index} of a SyntheticDataset with {self._num_samples} samples")
        if index < 0:
            if self._num_samples is None:
                raise IndexError(f"sample {index} of an endless SyntheticDataset")
            index += self._num_samples
        return nest.map_leaves(lambda leaf: _sample(leaf, index), self._spec)

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        index, stride = (0, 1) if info is None else (info.id, info.num_workers)
        while self._num_samples is None or index < self._num_samples:
            yield self[index]
            index += stride

    def __len__(self) -> int:
        if self._num_samples is None:
            raise TypeError("this SyntheticDataset is endless: it was made without num_samples.")
        return self._num_samples


def _check(spec: Any, place: str) -> None:
    if isinstance(spec, torch.Tensor):
        return
    if isinstance(spec, (list, tuple, dict, OrderedDict)):
        keys, values = nest.children(spec) or ([], [])
        for key, value in zip(keys, values, strict=True):
            _check(value, f"{place}[{key!r}]")
    elif not callable(spec):
        raise TypeError(
            f"{place} is a {type(spec).__name__}, expected a tensor, a function from an index to a tensor, or a list, "
            "tuple, NamedTuple, dict or OrderedDict of these."
        )


def _sample(leaf: Any, index: int) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()
    made = leaf(index)
    if not isinstance(made, torch.Tensor):
        raise TypeError(
            f"the sample function {leaf!r} returned a {type(made).__name__} for index {index}, not a tensor."
        )
    return made
