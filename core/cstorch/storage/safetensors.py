"""safetensors files: a length, a JSON header of names, dtypes, shapes and places, then the tensors' bytes."""

from __future__ import annotations

import json
import math
import os
import struct
import weakref
from typing import Any

import torch

from cstorch.device.mapped import mapped
from cstorch.errors import CheckpointContentError, CheckpointError
from cstorch.storage import atomic

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LONGEST = 100_000_000  # header, as the format says


class SafetensorsFile:
    """An open safetensors file.

    Args:
        file: Its descriptor, which is closed with the last reference to this object.
        name: What errors call it.

    Raises:
        CheckpointError: it is truncated, or its header is not what it should be.
    """

    def __init__(self, file: int, name: str) -> None:
        self._file = file
        weakref.finalize(self, os.close, file)
        (length,) = struct.unpack("<Q", os.pread(file, 8, 0))
        self._start = 8 + length
        size = os.fstat(file).st_size - self._start
        try:
            header = json.loads(os.pread(file, length, 8))
            header.pop("__metadata__", None)
            self._rows = {name: (_DTYPES[h["dtype"]], h["shape"], *h["data_offsets"]) for name, h in header.items()}
            for dtype, shape, begin, end in self._rows.values():
                if not 0 <= begin <= end <= size or end - begin != math.prod(shape) * dtype.itemsize:
                    raise ValueError("a tensor is not where the header says")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{name} cannot be read as a checkpoint: damaged safetensors: {error}") from error

    @property
    def names(self) -> list[str]:
        """Of the tensors."""
        return list(self._rows)

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor of a name: pages of the file, copied when they are written to."""
        dtype, shape, begin, end = self._rows[name]
        if begin == end:
            return torch.empty(shape, dtype=dtype)
        memory, at = mapped(self._file, self._start + begin, end - begin)
        made = torch.frombuffer(memory, dtype=torch.uint8, count=end - begin, offset=at)
        if at % dtype.itemsize:
            made = made.clone()
        return made.view(dtype).view(shape)


def is_safetensors(head: bytes, size: int) -> bool:
    """Whether the first bytes of a file of `size` bytes are those of a safetensors file."""
    if len(head) < 9:
        return False
    (length,) = struct.unpack_from("<Q", head)
    return head[8:9] == b"{" and 2 <= length <= min(size - 8, _LONGEST)


def write_safetensors(tensors: dict[str, torch.Tensor], checkpoint_file: str | os.PathLike[str]) -> None:
    """Write a flat dict of tensors.

    Raises:
        CheckpointContentError: something in it is no tensor, or of a dtype that the format lacks.
        CheckpointError: the file cannot be written.
    """
    header: dict[str, Any] = {}
    at = 0
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor) or value.dtype not in _NAMES:
            what = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
            raise CheckpointContentError(
                f"{name!r} is of {what}, and a safetensors file holds tensors of its dtypes only."
            )
        header[name] = {
            "dtype": _NAMES[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [at, at + value.numel() * value.dtype.itemsize],
        }
        at = header[name]["data_offsets"][1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def write(file: int) -> None:
        with os.fdopen(os.dup(file), "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for value in tensors.values():
                plain = value.detach().cpu().contiguous().flatten()
                if plain.numel():
                    out.write(memoryview(plain.view(torch.uint8).numpy()))  # type: ignore[arg-type]

    atomic.replace(checkpoint_file, write)
