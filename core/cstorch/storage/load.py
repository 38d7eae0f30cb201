"""`cstorch.load`: reads checkpoint files of all kinds, told apart by their first bytes."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from cstorch.device import CSX
from cstorch.errors import CheckpointError, CheckpointNotFoundError, CstorchError
from cstorch.storage.collections_off import no_collections
from cstorch.storage.hdf5 import SIGNATURE as HDF5
from cstorch.storage.hdf5 import USER_BLOCK
from cstorch.storage.index import is_ours
from cstorch.storage.lazy_dict import NamedTensors, Refused, Unread, lazy_dict
from cstorch.storage.opened import OpenedCheckpoint
from cstorch.storage.progress import ByteProgress
from cstorch.storage.safetensors import SafetensorsFile, is_safetensors
from cstorch.storage.tensors import Place, Tensors
from cstorch.storage.tree import Path
from cstorch.storage.tree_decoder import Decoder
from cstorch.tracing import nest


def load(checkpoint_file: Any, map_location: Any = None, *, check: bool = True, **kwargs: Any) -> Any:
    """Load a checkpoint (`cerebras.pytorch.load`).

    Reads what `cstorch.save`, `torch.save` and the reference implementation write. Loading runs no code from the
    file unless `weights_only=False` is given.

    Args:
        checkpoint_file: A path or an open binary file.
        map_location: None: tensors are read from the file at every access; a large one is then memory of the
            system's page cache. "cache": they are read at the first access and kept. "cpu": all are read at once.
            A device, a callable or a dict: as for `torch.load`.
        check: Whether tensors of a file of `cstorch.save` are compared with their checksums when they are first read.
            Without that a large tensor that is read lazily costs nothing until it is used.
        **kwargs: Passed to `torch.load` for its files. `weights_only` is True unless given.

    Returns:
        What was saved. Lazily loaded dicts are dicts, too.

    Raises:
        CheckpointError: the file is no checkpoint, is truncated or damaged (a RuntimeError). It says which and where.
        CheckpointNotFoundError: the file does not exist (also a FileNotFoundError).
    """
    weights_only = kwargs.setdefault("weights_only", True)
    with _opened(checkpoint_file) as (file, name, is_path):
        head = os.pread(file, 2 * USER_BLOCK, 0)
        if is_ours(head):
            opened = OpenedCheckpoint(os.dup(file), name, check)
            return load_opened(opened, map_location, weights_only)
        if HDF5 in (head[:8], head[USER_BLOCK : USER_BLOCK + 8]):
            from cstorch.storage.reference import ReferenceFile  # h5py takes time to import

            reference = ReferenceFile(file, name, weights_only)
            return _load_named(reference.load, reference.tensor, map_location)
        if is_safetensors(head, os.fstat(file).st_size):
            found = SafetensorsFile(os.dup(file), name)
            return _load_named(
                lambda named: named.dict(dict, [(name, named.tensor(name)) for name in found.names]),
                found.tensor,
                map_location,
            )
        if not head:
            raise CheckpointError(f"{name} cannot be read as a checkpoint: it is empty.")
        return _load_torch(file, name, is_path, map_location, kwargs)


def opened_checkpoint(checkpoint_file: Any) -> OpenedCheckpoint:
    """A file of `cstorch.save`, open.

    Raises:
        CheckpointError: it is something else, truncated or damaged.
        CheckpointNotFoundError: it does not exist.
    """
    with _opened(checkpoint_file) as (file, name, _):
        if not is_ours(os.pread(file, 2 * USER_BLOCK, 0)):
            raise CheckpointError(f"{name} was not written by cstorch.save.")
        return OpenedCheckpoint(os.dup(file), name)


def load_opened(opened: OpenedCheckpoint, map_location: Any, weights_only: bool = True) -> Any:
    """The state dict of an open file of `cstorch.save`."""
    is_lazy = map_location is None or _is_cache(map_location)
    keep = map_location is not None
    to_csx = _is_csx(map_location)
    place = None if is_lazy or to_csx else _place(map_location)
    tensors = Tensors(opened, opened.map if is_lazy else opened.read, keep, to_csx, place)
    unpickled = _Unpickled(opened, weights_only, is_lazy)
    with no_collections():
        if is_lazy:
            decoder = Decoder(Unread, unpickled, functools.partial(lazy_dict, tensors), tensors)
            return decoder.decode(json.loads(opened.index.tree))
        with ByteProgress(f"loading {os.path.basename(opened.name)}", opened.locator.size) as progress:
            opened.progress = progress
            return Decoder(tensors, unpickled).decode(json.loads(opened.index.tree))


def _load_named(load: Callable[[NamedTensors], Any], read: Callable[[str], torch.Tensor], map_location: Any) -> Any:
    """What `load` makes with the tensors of a file that `read` gives by name."""
    if map_location is None:
        return load(NamedTensors(read, is_lazy=True))
    is_cache, to_csx = _is_cache(map_location), _is_csx(map_location)
    place = None if is_cache or to_csx else _place(map_location)

    @functools.cache  # linked names are one tensor
    def tensor(name: str) -> torch.Tensor:
        made = read(name)
        if to_csx:
            return made.to(CSX)
        if place is None:
            return made
        storage = place(made.untyped_storage())
        return torch.empty(0, dtype=made.dtype, device=storage.device).set_(storage, 0, made.shape, made.stride())

    return load(NamedTensors(tensor, is_lazy=is_cache))


class _Unpickled:
    """Gives the objects that were saved with `pickle_objects=True`, if the caller trusts the file."""

    def __init__(self, opened: OpenedCheckpoint, weights_only: bool, is_lazy: bool) -> None:
        self._opened, self._weights_only, self._is_lazy = opened, weights_only, is_lazy
        self._state: Any = None

    def __call__(self, name: str, path: Path) -> Any:
        if not self._weights_only:
            return self._read(path)
        refusal = CheckpointError(
            f"{name!r} in {self._opened.name} was pickled, and reading it could run code from the file. If you trust "
            "the file, pass weights_only=False."
        )
        if self._is_lazy:
            return Refused(refusal)
        raise refusal

    def _read(self, path: Path) -> Any:
        if self._state is None:
            with os.fdopen(os.dup(self._opened.file), "rb") as file:
                file.seek(0)
                self._state = (torch.load(file, map_location="cpu", weights_only=False),)
        found = self._state[0]
        for step in path:
            if step == "__dict__":
                found = vars(found)
            elif isinstance(found, Mapping):
                found = list(found.values())[step]
            elif isinstance(found, (list, tuple)) or hasattr(found, "popleft"):
                found = found[step]
            else:
                found = list(vars(found).values())[step]
        return found


def _is_cache(map_location: Any) -> bool:
    return isinstance(map_location, str) and map_location == "cache"


def _is_csx(map_location: Any) -> bool:
    return isinstance(map_location, (str, torch.device)) and str(map_location).startswith(CSX.type)


def _place(map_location: Any) -> Place | None:
    """Where storages go, for the `map_location` of `torch.load`; None for the cpu, where they are."""
    if isinstance(map_location, Mapping):
        map_location = map_location.get("cpu", "cpu")
    if isinstance(map_location, (str, torch.device)):
        device = torch.device(map_location)
        if device.type == "cpu":
            return None
        return lambda storage: torch.empty(0, dtype=torch.uint8).set_(storage).to(device).untyped_storage()
    if not callable(map_location):
        raise TypeError(
            f"map_location is {map_location!r}. Expected None, 'cache', a device, a dict of devices or a callable."
        )

    def call(storage: torch.UntypedStorage) -> torch.UntypedStorage:
        placed = map_location(storage, "cpu")
        return storage if placed is None else getattr(placed, "_untyped_storage", placed)

    return call


@contextlib.contextmanager
def _opened(checkpoint_file: Any) -> Iterator[tuple[int, str, bool]]:
    """A descriptor of the file, what to call it, and whether it was given as a path."""
    if isinstance(checkpoint_file, (str, os.PathLike)):
        name = os.fspath(checkpoint_file)
        try:
            file = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise CheckpointNotFoundError(f"the checkpoint {name} does not exist or is not a file.") from None
        except OSError as error:
            raise CheckpointError(f"the checkpoint {name} cannot be read: {error.strerror or error}.") from error
        try:
            if os.path.isdir(name):
                raise CheckpointError(f"the checkpoint {name} does not exist or is not a file: it is a folder.")
            yield file, str(name), True
        finally:
            os.close(file)
        return
    file = os.memfd_create("checkpoint")  # whatever kind of stream it is, its bytes can be mapped then
    try:
        with os.fdopen(os.dup(file), "wb") as copy:
            while data := checkpoint_file.read(1 << 24):
                copy.write(data)
        yield file, str(getattr(checkpoint_file, "name", "(a stream)")), False
    finally:
        os.close(file)


def _load_torch(file: int, name: str, is_path: bool, map_location: Any, kwargs: dict[str, Any]) -> Any:
    to_csx = _is_csx(map_location)
    if to_csx or map_location is None or _is_cache(map_location):
        map_location = "cpu"
        if os.pread(file, 4, 0) == b"PK\3\4":
            kwargs.setdefault("mmap", True)
    try:
        if is_path or kwargs.get("mmap"):  # maps by name: of the file that is open, whatever happens to its path
            loaded = torch.load(f"/proc/self/fd/{file}", map_location=map_location, **kwargs)
        else:
            with os.fdopen(os.dup(file), "rb") as stream:
                stream.seek(0)
                loaded = torch.load(stream, map_location=map_location, **kwargs)
    except CstorchError:
        raise
    except Exception as error:
        raise CheckpointError(f"{name} cannot be read as a checkpoint: {error}") from error
    return nest.map_leaves(_on_csx, loaded) if to_csx else loaded


def _on_csx(leaf: Any) -> Any:
    return leaf.to(CSX) if isinstance(leaf, torch.Tensor) else leaf
