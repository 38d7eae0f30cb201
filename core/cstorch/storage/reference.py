"""Checkpoints of the reference implementation, read with h5py: those of version 0.5, and older ones.

HDF5 with each tensor and array at its dotted path. A file attribute `__spec__` (JSON) holds the tree with "*" at the
leaves, and beside it PyTorch's description of the containers. What a leaf is says a file attribute
`<path>.__metadata__`, or, in older files, an attribute `__H5_TYPE__` of the dataset. Pickled parts are refused unless
they are asked for.
"""

from __future__ import annotations

import contextlib
import json
import pickle
from collections import OrderedDict
from typing import Any

import h5py
import numpy as np
import torch

from cstorch.errors import CheckpointError
from cstorch.storage.lazy_dict import NamedTensors, Unread

_VALUES = {"Scalar": "scalar_value", "String": "string_value"}


class ReferenceFile:
    """A file of the reference.

    Args:
        file: A descriptor of it; it may be closed afterwards.
        name: What errors call it.
        weights_only: Whether pickled parts are refused.

    Raises:
        CheckpointError: it is not HDF5.
    """

    def __init__(self, file: int, name: str, weights_only: bool) -> None:
        self.name, self._weights_only = name, weights_only
        try:
            self._file = h5py.File(f"/proc/self/fd/{file}", "r", locking=False)
            self._attributes = dict(self._file.attrs)
        except OSError as error:
            raise CheckpointError(f"{name} cannot be read as a checkpoint: {error}") from error

    def load(self, named: NamedTensors) -> Any:
        """The state dict.

        Args:
            named: Makes the tensor of each key, and the dicts.

        Raises:
            CheckpointError: it is of another kind, damaged, or holds something pickled.
        """
        try:
            if "__spec__" in self._attributes:
                tree, containers = json.loads(self._attributes["__spec__"])
                return self._tree(tree, json.loads(containers)[1], (), named)
            keys: list[str] = []
            self._file.visititems(lambda key, item: keys.append(key) if isinstance(item, h5py.Dataset) else None)
            flat = {key.replace("/", "."): self._leaf(key, named) for key in keys}
        except (KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
            raise self._unknown(f"{type(error).__name__}: {error}") from error
        if not flat:
            raise self._unknown("it is empty")
        return _nested(flat, named)

    def tensor(self, key: str) -> torch.Tensor:
        """The tensor of a key, read from the file."""
        described = self._described(key)
        array = self._array(key)
        made = torch.from_numpy(array if array.flags.writeable else array.copy())
        dtype = made.dtype
        if "dtypes" in described:
            dtype = getattr(torch, str(described["dtypes"][0]).removeprefix("torch."))
            made = made.reshape([int(n) for n in described["shapes"][0]])
        elif described.get("is_bfloat16"):
            dtype = torch.bfloat16
        if made.dtype == dtype:
            return made
        return made.view(dtype) if made.dtype.itemsize == dtype.itemsize else made.to(dtype)

    def _unknown(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self.name} cannot be read as a checkpoint: it is HDF5 of an unknown kind ({what}). Known are the files "
            "of cstorch.save and of the reference implementation; h5py reads others."
        )

    def _tree(self, tree: Any, spec: Any, path: tuple[str, ...], named: NamedTensors) -> Any:
        if tree == "*":
            return self._leaf(".".join(path), named)
        kind, children = str(spec["type"]).rpartition(".")[2], spec["children_spec"]
        if isinstance(tree, dict):
            keys = json.loads(spec["context"]) if isinstance(spec["context"], str) else list(tree)
            keys = keys["dict_context"] if isinstance(keys, dict) else keys
            items = [
                (key, self._tree(tree[str(key)], child, (*path, str(key)), named))
                for key, child in zip(keys, children, strict=True)
            ]
            return named.dict(OrderedDict if kind == "OrderedDict" else dict, items)
        parts = [
            self._tree(part, child, (*path, str(i)), named)
            for i, (part, child) in enumerate(zip(tree, children, strict=True))
        ]
        values = [named.read(part) if type(part) is Unread else part for part in parts]
        return tuple(values) if "tuple" in kind else values

    def _described(self, key: str) -> Any:
        """What is said of a leaf, by the file or by its dataset."""
        text = self._attributes.get(f"{key}.__metadata__")
        if text is not None:
            return json.loads(text)[f"{key}.__metadata__"]
        return dict(self._file[key].attrs)

    def _leaf(self, key: str, named: NamedTensors) -> Any:
        described = self._described(key)
        if described.get("__LINKED__"):
            return self._leaf(described["key"], named)
        type_name = described.get("__TYPE__", described.get("__H5_TYPE__"))
        if type_name is None:
            raise ValueError(f"nothing says what {key!r} is")
        kind = (type_name.decode() if isinstance(type_name, bytes) else str(type_name)).rpartition(".")[2]
        kind = kind.removesuffix("Serializer").removesuffix("H5Type")
        if kind == "TorchTensor":
            return named.tensor(key)
        if kind == "NumpyArray":
            return self._array(key)
        if kind in _VALUES:
            return described[_VALUES[kind]] if _VALUES[kind] in described else self._value(key)
        return None if kind == "None" else self._pickled(key, kind)

    def _value(self, key: str) -> Any:
        value = self._file[key][()]
        if isinstance(value, bytes):
            return value.decode()
        return value.item() if isinstance(value, np.generic) else value

    def _array(self, key: str) -> Any:
        dataset = self._file[key]
        if dataset.chunks is not None:
            with contextlib.suppress(ImportError):  # h5py finds its filters once it was imported
                import hdf5plugin  # noqa: F401
        try:
            return np.asarray(dataset[()])
        except OSError as error:
            if "filter" not in str(error):
                raise CheckpointError(f"{key!r} in {self.name} is damaged: {error}") from error
            raise CheckpointError(
                f"{key!r} in {self.name} is compressed, and h5py cannot read it: {error}. Install what can: "
                "pip install hdf5plugin."
            ) from error

    def _pickled(self, key: str, kind: str) -> Any:
        if not self._weights_only:
            return pickle.loads(bytes(self._file[key].attrs["__BYTES__"]))
        raise CheckpointError(
            f"{key!r} in {self.name} was pickled (as {kind}), and reading it could run code from the file. If you "
            "trust the file, pass weights_only=False."
        )


def _nested(flat: dict[str, Any], named: NamedTensors) -> Any:
    """Dicts out of dotted names, for files that do not say what their containers were."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        at = tree
        *parents, last = name.split(".")
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = value
    return _lazy(tree, named)


def _lazy(tree: Any, named: NamedTensors) -> Any:
    return named.dict(dict, [(k, _lazy(v, named)) for k, v in tree.items()]) if type(tree) is dict else tree
