"""One run: all summaries in the event files of one folder, in the order they were written."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
from tensorboard.compat.proto import event_pb2
from tensorboard.util import tensor_util

from cstorch.utils.tensorboard.event_file import EventFile, Records
from cstorch.utils.tensorboard.scalars import scalars_of

_KINDS = {"histo": "histograms", "image": "images", "audio": "audio", "tensor": "tensors"}


class Stored(NamedTuple):
    """One summary that is no scalar."""

    position: int
    wall_time: float
    step: int
    content: Any


class Series:
    """The scalars of one tag: columns of record numbers, wall times, steps and values."""

    def __init__(self) -> None:
        self._pieces: list[list[Any]] = []
        self._whole = True

    def add(self, *columns: Any) -> None:
        """Add scalars as columns."""
        self._pieces.append([*columns])
        self._whole = False

    @property
    def columns(self) -> list[Any]:
        """All scalars, in the order they were written."""
        if not self._whole:
            columns = [np.concatenate(several) for several in zip(*self._pieces, strict=True)]
            if (np.diff(columns[0]) < 0).any():
                order = np.argsort(columns[0], kind="stable")
                columns = [column[order] for column in columns]
            self._pieces, self._whole = [columns], True
        return self._pieces[0]

    def keep_before(self, position: int, step: int) -> None:
        """Forget the steps from `step` on that were written before record `position`."""
        columns = self.columns
        keep = (columns[0] >= position) | (columns[2] < step)
        self._pieces = [[column[keep] for column in columns]]


class Run:
    """What the event files of a folder hold.

    Args:
        folder: The folder.
        purges: Whether a run that went on from an earlier step takes away what was written after that step.

    Attributes:
        scalars: A Series for each tag.
        others: The kind of all other summaries (tensors, images, ...) -> tag -> summaries.
        plugins: The name of the plugin for each tag that has one.
    """

    def __init__(self, folder: str, purges: bool = True) -> None:
        self.folder = folder
        self._purges = purges
        self._forget()

    def _forget(self) -> None:
        self.scalars: dict[str, Series] = {}
        self.others: dict[str, dict[str, list[Stored]]] = {kind: {} for kind in _KINDS.values()}
        self.plugins: dict[str, str] = {}
        self._files: dict[str, EventFile] = {}
        self._count = 0

    def reload(self) -> None:
        """Read what was written since the last time."""
        if any(file.is_another for file in self._files.values()):
            self._forget()
        for name in sorted(os.listdir(self.folder)):
            path = os.path.join(self.folder, name)
            if not is_event_file(name) or not os.path.isfile(path):
                continue
            if name not in self._files:
                self._files[name] = EventFile(path)
            for records in self._files[name].read():
                self._take(records)

    def _take(self, records: Records) -> None:
        unread = np.ones(len(records.starts), bool)
        for positions, rows in records.by_length():
            for scalars in scalars_of(rows):
                chosen = positions[scalars.positions]
                unread[chosen] = False
                self._series(scalars.tag).add(self._count + chosen, scalars.wall_times, scalars.steps, scalars.values)
        starts: list[tuple[int, int]] = []
        for index in np.flatnonzero(unread).tolist():
            start = int(records.starts[index])
            event = event_pb2.Event.FromString(records.data[start : start + int(records.lengths[index])].tobytes())
            position = self._count + index
            if event.HasField("session_log") and event.session_log.status == event_pb2.SessionLog.START:
                starts.append((position, event.step))
            for value in event.summary.value:
                self._take_one(position, event, value)
        self._count += len(records.starts)
        for position, step in starts if self._purges else ():
            self._purge(position, step)

    def _take_one(self, position: int, event: Any, value: Any) -> None:
        tag = value.tag or value.node_name
        plugin = value.metadata.plugin_data.plugin_name
        if plugin:
            self.plugins.setdefault(tag, plugin)
        kind = value.WhichOneof("value")
        if kind == "simple_value":
            number = value.simple_value
        elif kind == "tensor" and self.plugins.get(tag) == "scalars":
            number = float(tensor_util.make_ndarray(value.tensor).item())
        else:
            if kind in _KINDS:
                stored = Stored(position, event.wall_time, event.step, getattr(value, kind))
                self.others[_KINDS[kind]].setdefault(tag, []).append(stored)
            return
        columns = (position, np.int64), (event.wall_time, np.float64), (event.step, np.int64), (number, np.float64)
        self._series(tag).add(*(np.array([content], dtype) for content, dtype in columns))

    def _series(self, tag: str) -> Series:
        return self.scalars.setdefault(tag, Series())

    def _purge(self, position: int, step: int) -> None:
        for series in self.scalars.values():
            series.keep_before(position, step)
        for tags in self.others.values():
            for tag, several in tags.items():
                tags[tag] = [one for one in several if one.position >= position or one.step < step]


def is_event_file(name: str) -> bool:
    """Whether a file of that name is one of TensorBoard's event files."""
    return "tfevents" in name and not name.endswith(".profile-empty")
