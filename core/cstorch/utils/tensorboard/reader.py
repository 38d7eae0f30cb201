"""SummaryReader: reads back what a SummaryWriter wrote, also while it is still writing."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import ScalarEvent, TensorEvent

from cstorch.utils.tensorboard.run import Run, is_event_file
from cstorch.utils.tensorboard.tensors import FOLDER, TensorDescriptor, tensor_files

_IGNORED = {
    "size_guidance",  # all summaries are kept
    "tensor_size_guidance",
    "max_reload_threads",
    "event_file_active_filter",
    "detect_file_replacement",  # always noticed
}
_TEXT_ENDING = "/text_summary"  # what torch's add_text appends


class SummaryReader:
    """Reads the summaries below some folders (`cerebras.pytorch.utils.tensorboard.SummaryReader`).

    Each folder that holds event files or tensors is a run, however deep below a log dir. All summaries are kept, none
    is sampled. Records that are still being written are read by a later `reload`; damaged ones are left out with a
    warning.

    Args:
        log_dirs: The folder, or several, to look for runs in.
        filter: Keep only the names of groups that begin so, those that match `filter*/*`.
        run_path_map: Further folders by the name of their run.
        purge_orphaned_data: Whether a run that went on from an earlier step takes away what had been written from that
            step on, as TensorBoard does.
        **kwargs: Other options of TensorBoard's EventMultiplexer, which change nothing here.

    Raises:
        TypeError: an option that EventMultiplexer does not have.
    """

    def __init__(
        self,
        log_dirs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        filter: str | None = None,  # noqa: A002
        run_path_map: dict[str, str] | None = None,
        purge_orphaned_data: bool = True,
        **kwargs: Any,
    ) -> None:
        unknown = kwargs.keys() - _IGNORED
        if unknown:
            raise TypeError(
                f"SummaryReader got {', '.join(sorted(unknown))}, expected options of TensorBoard's EventMultiplexer: "
                f"{', '.join(sorted(_IGNORED | {'run_path_map', 'purge_orphaned_data'}))}."
            )
        given = [log_dirs] if isinstance(log_dirs, (str, os.PathLike)) else list(log_dirs)
        self._log_dirs = [os.fspath(folder) for folder in given]
        self._filter = filter
        self._named = {os.fspath(path): name for name, path in (run_path_map or {}).items()}
        self._purges = purge_orphaned_data
        self._runs: dict[str, Run] = {}
        self._names: dict[str, str] = {}
        for folder in (*self._log_dirs, *self._named):
            if not os.path.isdir(folder):
                warnings.warn(
                    f"there is no folder {folder} to read summaries from. Check its name, or call reload() when the "
                    "program that writes it has begun.",
                    stacklevel=2,
                )
        self.reload()

    def reload(self) -> None:
        """Read what was written since the last time, new runs and files included. Costs what is new, not the rest."""
        for top in (*self._log_dirs, *self._named):
            for folder, below, files in os.walk(top, followlinks=True):
                below.sort()
                if FOLDER in below:
                    below.remove(FOLDER)  # a folder of tensors has no runs below it
                    self._enter(top, folder)
                elif any(map(is_event_file, files)):
                    self._enter(top, folder)
        for run in self._runs.values():
            if os.path.isdir(run.folder):
                run.reload()

    def _enter(self, top: str, folder: str) -> None:
        if folder not in self._runs:
            self._runs[folder] = Run(folder, self._purges)
            below = os.path.relpath(folder, top)
            if top in self._named:
                self._names[folder] = os.path.normpath(os.path.join(self._named[top], below))
            else:
                self._names[folder] = below if len(self._log_dirs) == 1 else os.path.normpath(folder)

    # -- names -------------------------------------------------------------------------------------------

    def _kept(self, name: str) -> bool:
        return self._filter is None or (name.startswith(self._filter) and "/" in name[len(self._filter) :])

    def scalar_names(self) -> set[str]:
        """The names of all scalars, those that the filter lets through.

        Returns:
            Names such as "train/loss"; of runs in folders below too, without the folder.
        """
        return {name for run in self._runs.values() for name in run.scalars if self._kept(name)}

    def scalar_groups(self) -> set[str]:
        """The groups of scalars.

        Returns:
            Names up to the first slash: "train" of "train/loss".
        """
        return {name.partition("/")[0] for name in self.scalar_names()}

    def tensor_names(self) -> set[str]:
        """The names of all whole tensors, those that the filter lets through.

        Returns:
            Names as `SummaryWriter.add_tensor` and `cstorch.summarize_tensor` were given them.
        """
        return {name for run in self._runs for name in tensor_files(run) if self._kept(name)}

    def text_summary_names(self) -> set[str]:
        """The names of all texts, those that the filter lets through.

        Returns:
            Names as they are written: torch's `add_text(name, ...)` appends `/text_summary`.
        """
        return {
            name
            for run in self._runs.values()
            for name in run.others["tensors"]
            if run.plugins.get(name) == "text" and self._kept(name)
        }

    def Tags(self) -> dict[str, list[str]]:  # noqa: N802
        """All names by kind.

        Returns:
            For "scalars", "tensors" (texts and whole tensors), "histograms", "images" and "audio" the sorted names;
            kinds of which there is nothing may be left out.
        """
        tags = {"scalars": self.scalar_names(), "tensors": self.tensor_names()}
        for run in self._runs.values():
            for kind, names in run.others.items():
                tags.setdefault(kind, set()).update(filter(self._kept, names))
        return {kind: sorted(names) for kind, names in tags.items()}

    # -- values ------------------------------------------------------------------------------------------

    def read_scalar(self, name: str, step: int | None = None) -> Any:
        """The scalars of one name.

        Args:
            name: The name.
            step: The step to read.

        Returns:
            A list of TensorBoard's ScalarEvent(wall_time, step, value), one run after another, each in the order it
            was written. With a step: its event, the one written last where there are several; None when there is none.

        Raises:
            KeyError: there are no scalars of this name.
        """
        if name not in self.scalar_names():
            raise _unknown("scalars", name, self.scalar_names())
        events: list[Any] = []
        for run in self._runs.values():
            if name in run.scalars:
                _, wall_times, steps, values = run.scalars[name].columns
                if step is not None:
                    wall_times, steps, values = (column[steps == step] for column in (wall_times, steps, values))
                events += map(ScalarEvent, wall_times.tolist(), steps.tolist(), values.tolist())
        return events if step is None else events[-1] if events else None

    def Scalars(self, name: str) -> list[Any]:  # noqa: N802
        """The same as `read_scalar(name)`.

        Args:
            name: The name.

        Returns:
            A list of TensorBoard's ScalarEvent(wall_time, step, value).

        Raises:
            KeyError: there are no scalars of this name.
        """
        events: list[Any] = self.read_scalar(name)
        return events

    def read_tensor(self, name: str, step: int | None = None, latest_only: bool = True) -> Any:
        """The tensors of one name that `SummaryWriter.add_tensor` or `cstorch.summarize_tensor` wrote.

        Args:
            name: The name.
            step: The step to read.
            latest_only: Of several written for a step, keep the one that was written last.

        Returns:
            A TensorDescriptor(step, ns_since_epoch, tensor); without a step that of the latest step. With
            `latest_only=False` a list of all of the step, or without a step a dict of such lists by step. None when
            there is nothing.
        """
        files = [file for run in self._runs for file in tensor_files(run).get(name, ())] if self._kept(name) else []
        chosen = [file for file in files if step is None or file.step == step]
        if not chosen:
            return None
        if latest_only:
            return max(chosen, key=lambda file: (file.step, file.ns_since_epoch)).read()
        found: dict[int, list[TensorDescriptor]] = {}
        for file in chosen:
            found.setdefault(file.step, []).append(file.read())
        return found if step is None else found[step]

    def read_text_summary(self, name: str, step: int | None = None) -> list[Any]:
        """The texts of one name.

        Args:
            name: Its name, with or without the `/text_summary` that torch's `add_text` appends.
            step: The step to read.

        Returns:
            A list of TensorBoard's TensorEvent(wall_time, step, tensor_proto); the text is
            `event.tensor_proto.string_val[0].decode()`.

        Raises:
            KeyError: there are no texts of this name.
        """
        names = self.text_summary_names()
        full = name if name in names else name + _TEXT_ENDING
        if full not in names:
            raise _unknown("texts", name, names)
        return [
            TensorEvent(text.wall_time, text.step, text.content)
            for run in self._runs.values()
            for text in run.others["tensors"].get(full, ())
            if step is None or text.step == step
        ]

    def to_pandas(self, names: Iterable[str] | str | None = None) -> Any:
        """Scalars as a pandas.DataFrame with the columns run, name, step, wall_time and value.

        Args:
            names: The names to read; all by default.

        Raises:
            ImportError: pandas is not installed.
            KeyError: there are no scalars of a name.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_pandas needs pandas, which is not installed: pip install pandas") from error

        known = self.scalar_names()
        chosen = sorted(known) if names is None else [names] if isinstance(names, str) else list(names)
        for name in chosen:
            if name not in known:
                raise _unknown("scalars", name, known)
        parts = [
            (self._names[folder], name, run.scalars[name].columns)
            for name in chosen
            for folder, run in self._runs.items()
            if name in run.scalars
        ]
        lengths = [len(columns[0]) for _, _, columns in parts]
        _, wall_times, steps, values = (
            (np.concatenate(several) for several in zip(*(columns for _, _, columns in parts), strict=True))
            if parts
            else ([], [], [], [])
        )
        return pd.DataFrame(
            {
                "run": np.repeat(np.array([run for run, _, _ in parts], object), lengths),
                "name": np.repeat(np.array([name for _, name, _ in parts], object), lengths),
                "step": steps,
                "wall_time": pd.to_datetime(wall_times, unit="s", utc=True),
                "value": values,
            }
        )


def _unknown(what: str, name: str, known: set[str]) -> KeyError:
    return KeyError(f"there are no {what} of the name {name!r}; there are {', '.join(sorted(known)) or 'none'}.")
