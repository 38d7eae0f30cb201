"""Writes a state dict in the layout of the reference implementation (version 0.5), to go on with on the real system.

Numbers and text are in the file's attributes, tensors and arrays in flat uncompressed datasets; nothing is pickled.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from cstorch.errors import CheckpointContentError
from cstorch.storage import atomic

VERSION = 0.5
_RELEASE = "2.10.0"  # of the implementation whose files these are like
_NUMBERS = {
    torch.bool: 1, torch.int8: 2, torch.int16: 3, torch.int32: 4, torch.int64: 5, torch.uint8: 6, torch.uint16: 7,
    torch.uint32: 8, torch.uint64: 9, torch.float16: 10, torch.float32: 11, torch.float64: 12, torch.bfloat16: 15,
}  # fmt: skip
_LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


def write_reference(state: Any, checkpoint_file: str | os.PathLike[str]) -> None:
    """Write `state` in the reference's layout.

    Args:
        state: Dicts, OrderedDicts, lists and tuples of tensors, arrays, numbers, text, bools and None.
        checkpoint_file: Where to; the file appears complete or not at all.

    Raises:
        CheckpointContentError: it holds something that the layout has no form for without pickling. It is named.
        CheckpointError: the file cannot be written.
    """

    def write(file: int) -> None:
        with h5py.File(f"/proc/self/fd/{file}", "w", locking=False) as made:
            _Writer(made).write(state)

    atomic.replace(Path(checkpoint_file), write)


class _Writer:
    def __init__(self, file: Any) -> None:
        self._file = file
        self._seen: dict[Any, str] = {}

    def write(self, state: Any) -> None:
        tree, spec = self._part(state, ())
        self._file.attrs["__version__"] = VERSION
        self._file.attrs["__cstorch_version__"] = _RELEASE
        self._file.attrs["__spec__"] = _spec(tree, spec)
        self._file.attrs["__SUCCESS__"] = True

    def _part(self, value: Any, path: tuple[str, ...]) -> tuple[Any, Any]:
        """The tree and the description of the containers of `value`; its leaves are written."""
        kind = type(value)
        if isinstance(value, dict):
            for key in value:
                if type(key) not in (str, int):
                    raise CheckpointContentError(f"the key {key!r} in {'.'.join(path)!r} is neither text nor an int.")
            parts = [self._part(v, (*path, str(k))) for k, v in value.items()]
            named = "collections.OrderedDict" if isinstance(value, OrderedDict) else "builtins.dict"
            tree: Any = {str(k): part[0] for k, part in zip(value, parts, strict=True)}
            return tree, _container(named, list(value), [part[1] for part in parts])
        if kind is list or kind is tuple:
            parts = [self._part(v, (*path, str(i))) for i, v in enumerate(value)]
            return [p[0] for p in parts], _container(f"builtins.{kind.__name__}", None, [p[1] for p in parts])
        key = ".".join(path)
        described = self._leaf(value, key)
        self._file.attrs[f"{key}.__metadata__"] = json.dumps(
            {
                "__spec__": json.loads(_spec({key: "*"}, _container("builtins.dict", [key], [_LEAF]))),
                "__objects__": [key],
                f"{key}.__metadata__": described,
            },
            indent=4,
        )
        return "*", _LEAF

    def _leaf(self, value: Any, key: str) -> dict[str, Any]:
        if isinstance(value, torch.Tensor):
            return self._tensor(value.detach().cpu(), key)
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            said = {"is_bfloat16": False, "__TYPE__": "NumpyArraySerializer", "__NUMPY__": True, "compressed": False}
            self._dataset(key, value, said)
            return said
        if isinstance(value, np.generic):
            value = value.item()
        if value is None:
            return {"__TYPE__": "NoneSerializer", "__NONE__": True}
        if type(value) in (bool, int, float):
            return {"scalar_value": value, "__TYPE__": "ScalarSerializer", "__NONE__": True}
        if type(value) is str:
            return {"string_value": value, "__TYPE__": "StringSerializer", "__NONE__": True}
        raise CheckpointContentError(
            f"{key!r} is of type {type(value).__name__}, which the reference's layout has no form for that is not "
            "pickled. Leave it out, or turn it into numbers, text, lists and dicts."
        )

    def _tensor(self, value: torch.Tensor, key: str) -> dict[str, Any]:
        number = _NUMBERS.get(value.dtype)
        if number is None:
            raise CheckpointContentError(f"{key!r} is a tensor of {value.dtype}, which the reference's layout lacks.")
        memory = (value.untyped_storage().data_ptr(), value.storage_offset(), value.shape, value.stride(), value.dtype)
        known = self._seen.setdefault(memory, key) if value.numel() else key
        if known != key:
            return {"key": known, "__LINKED__": True, "__TYPE__": "LinkedObject", "__NONE__": True}
        said = {
            "__TORCH__": True, "shapes": [list(value.shape)], "dtypes": [str(value.dtype)], "rtfx_dtypes": [number],
            "__TYPE__": "TorchTensorSerializer", "__NUMPY__": True, "compressed": False,
        }  # fmt: skip
        stored = value.view(torch.int16) if value.dtype is torch.bfloat16 else value
        self._dataset(key, stored.numpy(), said)
        return said

    def _dataset(self, key: str, array: Any, said: dict[str, Any]) -> None:
        dataset = self._file.create_dataset(key, data=array)
        for name, value in said.items():
            dataset.attrs[name] = np.array(value, h5py.string_dtype()) if name == "dtypes" else value


def _container(kind: str, context: Any, children: list[Any]) -> dict[str, Any]:
    return {"type": kind, "context": json.dumps(context), "children_spec": children}


def _spec(tree: Any, containers: Any) -> str:
    """A tree and PyTorch's description (version 1) of its containers, as the reference writes them."""
    return json.dumps([tree, json.dumps([1, containers])], indent=4)
