"""A state dict as typed JSON: everything but the contents of tensors. `tree_decoder.py` reads it.

Dicts with text keys, lists, strings, ints, finite floats, bools and None are themselves. Everything else is an object
with one key that begins with "$" and names the kind: {"$tensor": 3}, {"$tuple": [1, 2]}, {"$bytes": "base64"}.
{"$tensors": [3, ["a", "b"]]} is {"a": {"$tensor": 3}, "b": {"$tensor": 4}}.
Classes are named only where objects of theirs hold nothing but data (namedtuples, members of enumerations).
"""

from __future__ import annotations

import argparse
import base64
import datetime
import enum
import math
import pathlib
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cstorch.errors import CheckpointContentError

Path = tuple[Any, ...]
"""The keys that lead to a value."""

_PLAIN = frozenset({str, bool, type(None)})
DATES = {kind.__name__: kind for kind in (datetime.datetime, datetime.date, datetime.time)}
"""Types that `isoformat` writes, by name."""

PATHS = {
    kind.__name__: kind
    for kind in (pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
}
"""Types of paths, by name."""

_LARGEST_INT = 1 << 1024  # longer ones are written in hexadecimal: Python refuses long decimals


def dotted(path: Path) -> str:
    """A path as the dataset of a tensor there is called."""
    return ".".join([str(key) for key in path]) or "(top)"


class Encoder:
    """Turns objects into typed JSON.

    Args:
        add_tensor: Called with each tensor and its path; returns its number.
        add_object: Called with each object that has no safe form, and its path; None to raise TypeError for these.
    """

    def __init__(
        self, add_tensor: Callable[[torch.Tensor, Path], int], add_object: Callable[[Any, Path], None] | None
    ) -> None:
        self.add_tensor, self.add_object = add_tensor, add_object
        self._open: set[int] = set()

    def encode(self, value: Any, path: Path = ()) -> Any:
        """`value`, which is at `path`, as what `json.dumps` writes.

        Raises:
            CheckpointContentError: it has no safe form, or contains itself. A TypeError; names the path.
        """
        kind = type(value)
        if kind in _PLAIN:
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if kind is int:
            return value if -_LARGEST_INT < value < _LARGEST_INT else {"$int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        write = _WRITERS.get(kind)
        if write is not None:
            return write(value)
        if id(value) in self._open:
            raise CheckpointContentError(
                f"the {kind.__name__} at {dotted(path)!r} contains itself, and a checkpoint is a tree."
            )
        self._open.add(id(value))
        try:
            return self._container(value, path)
        finally:
            self._open.discard(id(value))

    def _tensor(self, value: torch.Tensor, path: Path) -> Any:
        try:
            number = self.add_tensor(value, path)
        except CheckpointContentError:
            if self.add_object is None:
                raise
            return self._object(value, path)
        if type(value) is not torch.Tensor and isinstance(value, torch.nn.Parameter):
            return {"$parameter": [number, value.requires_grad]}
        return {"$tensor": number} if not value.requires_grad else {"$leaf": number}

    def _container(self, value: Any, path: Path) -> Any:
        kind = type(value)
        if kind is dict:
            return self._items(value, path)
        if kind is list:
            return self._sequence(value, path)
        if kind in (tuple, deque):
            return {"$" + kind.__name__: self._sequence(value, path)}
        if kind in (OrderedDict, Counter):
            body: list[Any] = [self._items(value, path)]
            if vars(value):  # state dicts carry the versions of their modules so
                body.append(self._items(vars(value), (*path, "__dict__")))
            return {"$" + kind.__name__: body}
        if kind in (set, frozenset):
            return {"$" + kind.__name__: [self._member(v, (*path, i)) for i, v in enumerate(value)]}
        if kind is argparse.Namespace:
            return {"$namespace": self._items(vars(value), path)}
        if isinstance(value, np.ndarray) and kind is np.ndarray:
            return self._array(value, path)
        if isinstance(value, enum.Enum):
            return {"$enum": [kind.__module__, kind.__qualname__, value.name]}
        if isinstance(value, np.generic) and value.dtype.kind in "biufcSUMm":
            return {"$numpy": [value.dtype.str, base64.b64encode(value.tobytes()).decode()]}
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            parts = [self.encode(v, (*path, name)) for name, v in zip(kind._fields, value, strict=True)]
            return {"$namedtuple": [kind.__module__, kind.__qualname__, list(kind._fields), parts]}
        return self._object(value, path)

    def _member(self, value: Any, path: Path) -> Any:
        if isinstance(value, torch.Tensor):
            raise CheckpointContentError(
                f"the set at {dotted(path[:-1])!r} contains a tensor. Use a list: the order of a set is not kept."
            )
        return Encoder(self.add_tensor, None).encode(value, path)

    def _items(self, value: Any, path: Path) -> Any:
        if all(type(k) is str and not k.startswith("$") for k in value):
            return _run_of_tensors({k: self.encode(v, (*path, k)) for k, v in value.items()})
        keys = Encoder(_no_tensor_keys, None)
        return {"$dict": [[keys.encode(k, (*path, repr(k))), self.encode(v, (*path, k))] for k, v in value.items()]}

    def _sequence(self, value: Any, path: Path) -> list[Any]:
        return [self.encode(v, (*path, i)) for i, v in enumerate(value)]

    def _array(self, value: Any, path: Path) -> Any:
        if value.dtype.kind in "biufc" and value.dtype.isnative and value.dtype.itemsize <= 16 and value.dtype != "g":
            usable = value.flags.c_contiguous and value.flags.writeable
            try:
                return {"$array": self.add_tensor(torch.from_numpy(value if usable else value.copy()), path)}
            except TypeError:  # a dtype that PyTorch has not
                pass
        if value.dtype.hasobject:
            return self._object(value, path)
        dtype = value.dtype.descr if value.dtype.names else value.dtype.str
        return {"$ndarray": [dtype, list(value.shape), base64.b64encode(value.tobytes()).decode()]}

    def _object(self, value: Any, path: Path) -> Any:
        if self.add_object is None:
            kind = type(value)
            raise CheckpointContentError(
                f"{dotted(path)!r} is of type {kind.__module__}.{kind.__qualname__}, which a checkpoint has no safe "
                "form for: loading it would run code. Save what it consists of instead (a dict of its "
                "attributes), or pass pickle_objects=True; then it is pickled, and torch.load(weights_only=False) "
                "or cstorch.load(weights_only=False) reads it."
            )
        self.add_object(value, path)
        return {"$pickle": dotted(path)}


def _run_of_tensors(items: dict[str, Any]) -> dict[str, Any]:
    """A dict of tensors numbered one after another in short; ten thousand of them open in half the time."""
    numbers = [v["$tensor"] for v in items.values() if type(v) is dict and "$tensor" in v]
    if 1 < len(items) == len(numbers) and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return {"$tensors": [numbers[0], list(items)]}
    return items


def _no_tensor_keys(tensor: torch.Tensor, path: Path) -> int:
    raise CheckpointContentError(f"the key {dotted(path)} of a dict is a tensor. Use its value or its name as the key.")


_WRITERS: dict[type, Callable[[Any], Any]] = {
    bytes: lambda v: {"$bytes": base64.b64encode(v).decode()},
    bytearray: lambda v: {"$bytearray": base64.b64encode(v).decode()},
    complex: lambda v: {"$complex": [repr(v.real), repr(v.imag)]},
    range: lambda v: {"$range": [v.start, v.stop, v.step]},
    torch.Size: lambda v: {"$size": list(v)},
    torch.dtype: lambda v: {"$dtype": str(v).removeprefix("torch.")},
    torch.device: lambda v: {"$device": str(v)},
    datetime.timedelta: lambda v: {"$timedelta": [v.days, v.seconds, v.microseconds]},
    **{kind: lambda v: {"$date": [type(v).__name__, v.isoformat()]} for kind in DATES.values()},
    **{kind: lambda v: {"$path": [type(v).__name__, str(v)]} for kind in PATHS.values()},
}
