"""A state dict out of typed JSON (`tree.py` says how that is written), without running code from the file.

Classes are looked up among the modules that are loaded; no module is imported.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import enum
import sys
from collections import Counter, OrderedDict, deque, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cstorch.errors import CheckpointError
from cstorch.storage.tree import DATES, PATHS, Path

_DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}


class Decoder:
    """Turns typed JSON back into objects.

    Args:
        make_tensor: Called with the number of each tensor; returns it, or what `make_dict` understands.
        make_object: Called with the name and the path of each pickled object.
        make_dict: Makes dicts: given dict or OrderedDict, and the items.
        make_array: Called with the number of each array of numpy; returns it.
        read_tensor: Like `make_tensor`, for tensors that are not the value of a dict: always a tensor.
    """

    def __init__(
        self,
        make_tensor: Callable[[int], Any],
        make_object: Callable[[str, Path], Any],
        make_dict: Callable[[type, list[tuple[Any, Any]]], Any] = lambda kind, items: kind(items),
        read_tensor: Callable[[int], torch.Tensor] | None = None,
        make_array: Callable[[int], Any] | None = None,
    ) -> None:
        self.make_tensor, self.make_object, self.make_dict = make_tensor, make_object, make_dict
        self.read_tensor = read_tensor or make_tensor
        self.make_array = make_array or (lambda number: self.read_tensor(number).numpy())

    def decode(self, value: Any, path: Path = ()) -> Any:
        """The object that the typed JSON `value` at `path` (positions among the parts) stands for."""
        kind = type(value)
        if kind is list:
            return [self.decode(v, (*path, i)) for i, v in enumerate(value)]
        if kind is not dict:
            return value
        if len(value) == 1:
            (key, body), *_ = value.items()
            if key.startswith("$"):
                return self._special(key[1:], body, path)
        return self.make_dict(dict, self._items(value, path))

    def _items(self, value: dict[str, Any], path: Path) -> list[tuple[Any, Any]]:
        items: Any = value.items()
        if len(value) == 1 and "$tensors" in value:
            first, names = value["$tensors"]
            return list(zip(names, map(self.make_tensor, range(first, first + len(names))), strict=True))
        if len(value) == 1 and "$dict" in value:
            items = [(self._key(k), v) for k, v in value["$dict"]]
        made = []
        for i, (k, v) in enumerate(items):
            kind = type(v)
            if kind is dict and len(v) == 1 and "$tensor" in v:  # the dict may leave it unread
                made.append((k, self.make_tensor(v["$tensor"])))
            else:
                made.append((k, self.decode(v, (*path, i)) if kind is dict or kind is list else v))
        return made

    def _key(self, key: Any) -> Any:
        return key if type(key) is str else self.decode(key)

    def _special(self, kind: str, body: Any, path: Path) -> Any:
        if kind in ("dict", "tensors"):
            return self.make_dict(dict, self._items({"$" + kind: body}, path))
        if kind == "tensor":
            return self.read_tensor(body)
        if kind == "leaf":
            return self.read_tensor(body).requires_grad_()
        if kind == "parameter":
            return torch.nn.Parameter(self.read_tensor(body[0]), requires_grad=body[1])
        if kind == "array":
            return self.make_array(body)
        if kind in ("OrderedDict", "Counter"):
            items = self._items(body[0], path)
            made = self.make_dict(OrderedDict, items) if kind == "OrderedDict" else Counter(dict(items))
            for k, v in self._items(body[1], (*path, "__dict__")) if len(body) > 1 else []:
                setattr(made, k, v)
            return made
        if kind == "namespace":
            return argparse.Namespace(**dict(self._items(body, path)))
        if kind == "pickle":
            return self.make_object(body, path)
        if kind in ("tuple", "deque", "set", "frozenset"):
            of = {"tuple": tuple, "deque": deque, "set": set, "frozenset": frozenset}[kind]
            return of([self.decode(v, (*path, i)) for i, v in enumerate(body)])
        if kind == "namedtuple":
            return _namedtuple(*body[:3])._make([self.decode(v, (*path, i)) for i, v in enumerate(body[3])])
        return _READERS[kind](body)


def _loaded(module: str, name: str) -> Any:
    """The object of that name in a module that is loaded; None when there is none."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _namedtuple(module: str, name: str, fields: list[str]) -> Any:
    found = _loaded(module, name)
    is_same = isinstance(found, type) and issubclass(found, tuple) and list(getattr(found, "_fields", ())) == fields
    return found if is_same else namedtuple(name.rpartition(".")[2], fields)


def _enum(body: list[str]) -> Any:
    module, name, member = body
    found = _loaded(module, name)
    if isinstance(found, enum.EnumMeta) and member in found.__members__:
        return found[member]
    raise CheckpointError(
        f"the checkpoint holds {name}.{member}, and no loaded module {module} has it. Import {module} first."
    )


def _array(body: list[Any]) -> Any:
    dtype, shape, data = body
    of = np.dtype([tuple(field) for field in dtype] if isinstance(dtype, list) else dtype)
    return np.frombuffer(bytearray(base64.b64decode(data)), of).reshape(shape)


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda v: int(v, 16),
    "float": float,
    "bytes": base64.b64decode,
    "bytearray": lambda v: bytearray(base64.b64decode(v)),
    "ndarray": _array,
    "complex": lambda v: complex(float(v[0]), float(v[1])),
    "range": lambda v: range(*v),
    "size": torch.Size,
    "dtype": lambda v: _DTYPES[v],
    "device": torch.device,
    "numpy": lambda v: np.frombuffer(base64.b64decode(v[1]), v[0])[0],
    "timedelta": lambda v: datetime.timedelta(*v),
    "date": lambda v: DATES[v[0]].fromisoformat(v[1]),
    "path": lambda v: PATHS[v[0]](v[1]),
    "enum": _enum,
}
