"""RunReport: what the programs of a backend are, kept up to date in a folder below its artifact_dir."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cstorch.device.tensor import observer
from cstorch.errors import CstorchError, words
from cstorch.run_folder import make_run_folder
from cstorch.tracing.context import context
from cstorch.tracing.program import Program

if TYPE_CHECKING:
    from cstorch.report.entry import Entry

logger = logging.getLogger("cstorch.compile")

_AT_ONCE = 16
"""So many programs are reported as soon as they are there; of more, at the end of the backend."""


class RunReport:
    """Collects the programs of a backend and writes `report.html`, `report.txt`, `report.json` and their graphs.

    They lie in `<artifact_dir>/compile/000001`, with a link `latest`, and are written when a program is made, not when
    it runs. A backend that only validates or compiles shows each program on standard error as well.

    Args:
        backend: The backend.

    Attributes:
        entries: The programs.
        notes: Portability warnings of the run beside those that follow from its programs.
        refused: What steps did that was refused, in words.
        keeps_files: Whether there are files of it.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._folders: dict[Path, Path] = {}
        self._said = 0
        self._behind = False
        self.entries: list[Entry] = []
        self.notes: list[str] = []
        self.refused: list[str] = []
        self.keeps_files = True

    @property
    def folder(self) -> Path:
        """The folder of this run, made when first asked for."""
        parent = self._backend.artifact_dir / "compile"
        if parent not in self._folders:
            self._folders[parent] = make_run_folder(parent)
        return self._folders[parent]

    @property
    def findings(self) -> list[str]:
        """Portability warnings, with what to do instead."""
        from cstorch.report.findings import findings

        return [*findings(entry.report for entry in self.entries), *self.notes]

    @contextlib.contextmanager
    def watching(self, step: str) -> Iterator[None]:
        """Note what is refused while `step` is traced, also where the program catches the error."""
        observer.refused.clear()
        try:
            yield
        except CstorchError as error:
            self.refused.append(f"the step {step!r} was not traced: {error}")
            self.write()
            raise
        else:
            self.refused += [f"the step {step!r}, which went on: {read}" for read in observer.refused]

    def add(self, program: Program, explored: dict[int, float] | None = None) -> Entry | None:
        """Take a program in; None, after a warning, where nothing can be said of it.

        Args:
            program: The program.
            explored: The seconds that it took by the size of its micro-batches, where several were tried.
        """
        from cstorch.report.entry import Entry
        from cstorch.report.graph import graph_lines
        from cstorch.report.names import input_names
        from cstorch.report.step import StepReport

        try:
            names = input_names(program, self._backend.modules)
            graph = "\n".join(graph_lines(program.graph.graph, names))
            entry = Entry(len(self.entries) + 1, StepReport.of(program), graph, explored=explored or {})
        except Exception as error:  # of a graph that a plugin has changed, for example: the run is worth more
            warnings.warn(f"no report can be made of the step {program.name!r} ({words(error)}).", stacklevel=2)
            return None
        self.entries.append(entry)
        return entry

    def note(self, finding: str) -> None:
        """Add a portability warning."""
        if finding not in self.notes:
            self.notes.append(finding)
            self.write()

    def write(self) -> None:
        """Write the files, and show what is new where nothing is executed."""
        self._behind = len(self.entries) > _AT_ONCE
        if not self._behind:
            self._write()
        if not self._backend.is_e2e_execution and context.validation is None:
            self._show()

    def close(self) -> None:
        """Write what was put off."""
        if self._behind:
            self._behind = False
            self._write()

    def _write(self) -> None:
        if not self.keeps_files:
            return
        from cstorch.report.page import page
        from cstorch.report.text import run_lines

        title = f"Backend {self._backend.name}, torch {torch.__version__}"
        told: dict[str, Any] = {
            "programs": [entry.as_dict() for entry in self.entries],
            "findings": self.findings,
            "refused": self.refused,
            "torch": torch.__version__,
        }
        try:
            folder = self.folder
            for entry in self.entries:
                target = folder / entry.graph_file
                if not target.exists():
                    target.write_text(f"{entry.graph}\n")
            (folder / "report.json").write_text(json.dumps(told, indent=1) + "\n")
            lines = run_lines(self.entries, told["findings"], self.refused)
            (folder / "report.txt").write_text("".join(f"{line}\n" for line in lines))
            (folder / "report.html").write_text(page(self.entries, told["findings"], self.refused, title))
        except OSError as error:
            logger.info("the compile report is not written: %s", error)

    def _show(self) -> None:
        from cstorch.report.text import entry_lines, finding_lines

        for entry in self.entries[self._said :]:
            sys.stderr.write("".join(f"{line}\n" for line in entry_lines(entry)))
        if self._said < len(self.entries):
            self._said = len(self.entries)
            lines = finding_lines(self.findings, self.refused)
            sys.stderr.write("".join(f"{line}\n" for line in [*lines, f"report: {self.folder / 'report.html'}"]))
