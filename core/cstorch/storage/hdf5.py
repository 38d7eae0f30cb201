"""The HDF5 side of a checkpoint: the metadata of one group of contiguous datasets, written without libhdf5.

In the words of the HDF5 file format specification: superblock version 0 behind a user block, a root group held in a
symbol table (version 1 B-tree, local heap, symbol table nodes), an object header of version 1 for each dataset with
a dataspace, datatype, fill value and contiguous layout message. All addresses count from the end of the user block.
The headers of datasets alike in datatype, rank and fill value differ in their numbers only, so numpy writes them by
the thousand into copies of one template.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

USER_BLOCK = 512
SIGNATURE = b"\x89HDF\r\n\x1a\n"
MAX_RANK = 32
UNDEFINED = 0xFFFFFFFFFFFFFFFF

_SUPERBLOCK = 96  # its own 56 bytes and the root group's symbol table entry
_HEADER = 16  # of an object: version, number of messages, reference count, size, padding
_PER_NODE = 16384
_SHAPE_AT = _HEADER + 16  # in an object header: the dimensions, behind the heads of message and dataspace
_ADDRESS_AT, _SIZE_AT = -22, -14  # from its end: the layout message comes last


@dataclass(frozen=True)
class Dataset:
    """A dataset to describe.

    Attributes:
        name: The link in the root group, without "/" and NUL.
        datatype: Its datatype message.
        shape: Its dimensions.
        nbytes: Its size.
        fill: The one value that all elements have, for a dataset without bytes of its own.
    """

    name: bytes
    datatype: bytes
    shape: tuple[int, ...]
    nbytes: int
    fill: bytes | None = None


def _message(kind: int, body: bytes, constant: bool = False) -> bytes:
    body += bytes(-len(body) % 8)
    return struct.pack("<HHB3x", kind, len(body), constant) + body


def _object_header(messages: Sequence[bytes]) -> bytes:
    body = b"".join(messages)
    return struct.pack("<BBHII4x", 1, 0, len(messages), 1, len(body)) + body


def _dataset_header(datatype: bytes, rank: int, fill: bytes | None) -> bytes:
    when = 1 if fill is None else 2  # never written out, or when it is set
    value = struct.pack("<BBBBI", 2, 2, when, 1, len(fill or b"")) + (fill or b"")
    return _object_header(
        (
            _message(1, struct.pack("<BBB5x", 1, rank, 0) + bytes(8 * rank)),
            _message(3, datatype, constant=True),
            _message(5, value, constant=True),
            _message(8, struct.pack("<BBQQ", 3, 1, 0, 0)),
        )
    )


class Metadata:
    """The HDF5 metadata of a file of `datasets`.

    Attributes:
        size: How many bytes `encode` will return; they belong right behind the user block.
    """

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self.datasets = datasets
        n = len(datasets)
        self._order = np.array(sorted(range(n), key=[d.name for d in datasets].__getitem__), np.int64)
        self._nodes = -(-n // _PER_NODE)
        self._leaf_k, self._inner_k = max(4, -(-min(n, _PER_NODE) // 2)), max(16, -(-self._nodes // 2))
        self._heap, self._name_at = self._local_heap()
        self._tree = _SUPERBLOCK + 40
        self._heap_head = self._tree + 24 + (4 * self._inner_k + 1) * 8
        self._heap_data = self._heap_head + 32
        self._first_node = self._heap_data + len(self._heap)
        self._node_size = 8 + 2 * self._leaf_k * 40
        position = self._first_node + self._nodes * self._node_size
        alike: dict[tuple[bytes, int, bytes | None], list[int]] = {}
        for i, d in enumerate(datasets):
            alike.setdefault((d.datatype, len(d.shape), d.fill), []).append(i)
        self._header_at = np.empty(n, np.uint64)
        self._blocks: list[tuple[npt.NDArray[np.int64], int, bytes, int]] = []
        for (datatype, rank, fill), members in alike.items():
            template = _dataset_header(datatype, rank, fill)
            chosen = np.array(members)
            self._header_at[chosen] = position + np.arange(len(members)) * len(template)
            self._blocks.append((chosen, rank, template, position))
            position += len(template) * len(members)
        self.size = position

    def _local_heap(self) -> tuple[bytes, npt.NDArray[np.uint64]]:
        """The names, each ended by NUL and padded to 8 bytes, behind an empty one; and where each is."""
        names = [self.datasets[i].name for i in self._order]
        padded = [name.ljust(len(name) // 8 * 8 + 8, b"\0") for name in names]
        widths = np.array([len(p) for p in padded], np.uint64)
        at = np.empty(len(names), np.uint64)
        at[self._order] = np.cumsum(widths) - widths + np.uint64(8)
        return b"".join([bytes(8), *padded]), at

    def encode(self, addresses: Sequence[int | None], end: int) -> bytes:
        """The bytes.

        Args:
            addresses: Where in the file each dataset's bytes are; None for those that have none.
            end: The size of the file.
        """
        out = bytearray(self.size)
        out[:_SUPERBLOCK] = (
            SIGNATURE
            + struct.pack("<8B2HI", 0, 0, 0, 0, 0, 8, 8, 0, self._leaf_k, self._inner_k, 0)
            + struct.pack("<4Q", USER_BLOCK, UNDEFINED, end - USER_BLOCK, UNDEFINED)
            + struct.pack("<QQII2Q", 0, _SUPERBLOCK, 1, 0, self._tree, self._heap_head)
        )
        root = _object_header([_message(0x11, struct.pack("<QQ", self._tree, self._heap_head))])
        out[_SUPERBLOCK : _SUPERBLOCK + len(root)] = root
        keys = self._symbol_table(out)
        tree = b"TREE" + struct.pack("<BBHQQ", 0, 0, self._nodes, UNDEFINED, UNDEFINED)
        tree += struct.pack(f"<{len(keys)}Q", *keys)
        out[self._tree : self._tree + len(tree)] = tree
        heap = b"HEAP" + struct.pack("<B3xQQQ", 0, len(self._heap), 1, self._heap_data)  # 1: no free block
        out[self._heap_head : self._heap_data] = heap
        out[self._heap_data : self._first_node] = self._heap
        self._headers(out, addresses)
        return bytes(out)

    def _symbol_table(self, out: bytearray) -> list[int]:
        """Write the nodes that name the datasets; the keys and children of the B-tree over them."""
        entries = np.zeros(len(self.datasets), np.dtype([("name", "<u8"), ("header", "<u8"), ("rest", "V24")]))
        entries["name"], entries["header"] = self._name_at[self._order], self._header_at[self._order]
        keys = [0]
        for k in range(self._nodes):
            part = entries[k * _PER_NODE : (k + 1) * _PER_NODE]
            at = self._first_node + k * self._node_size
            out[at : at + 8 + part.nbytes] = b"SNOD" + struct.pack("<BBH", 1, 0, len(part)) + part.tobytes()
            keys += [at, int(part["name"][-1])]
        return keys

    def _headers(self, out: bytearray, addresses: Sequence[int | None]) -> None:
        where = np.array([UNDEFINED if a is None else a - USER_BLOCK for a in addresses], np.uint64)
        sizes = np.array([d.nbytes for d in self.datasets], np.uint64)
        for members, rank, template, at in self._blocks:
            block = np.frombuffer(template * len(members), np.uint8).reshape(len(members), -1).copy()
            if rank:
                shapes = np.array([self.datasets[i].shape for i in members], "<u8")
                block[:, _SHAPE_AT : _SHAPE_AT + 8 * rank] = shapes.view(np.uint8).reshape(len(members), -1)
            block[:, _ADDRESS_AT:_SIZE_AT] = where[members].astype("<u8")[:, None].view(np.uint8)
            block[:, _SIZE_AT : _SIZE_AT + 8] = sizes[members].astype("<u8")[:, None].view(np.uint8)
            out[at : at + block.size] = block.tobytes()
