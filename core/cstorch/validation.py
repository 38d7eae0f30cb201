"""Validation: the programs that a run of the user's script is traced into, and what it warns of."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from cstorch.constraints.rule import Finding
from cstorch.report.findings import findings
from cstorch.report.step import StepReport
from cstorch.tracing.context import context
from cstorch.tracing.program import Program
from cstorch.where import is_library, is_ours


@dataclass
class Validation:
    """Context manager: CSX backends made in it validate only, and the programs that they trace are collected.

    Attributes:
        strict: Whether steps are held to the rules in `cstorch.constraints`.
        broken: What breaks them.
        programs: The programs.
        warnings: What was warned of, once each, with the line.
    """

    strict: bool = False
    broken: list[Finding] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __enter__(self) -> Validation:
        self._catcher = warnings.catch_warnings()
        self._catcher.__enter__()
        warnings.resetwarnings()
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        warnings.showwarning = self._note
        self._before, context.validation = context.validation, self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context.validation = self._before
        self._catcher.__exit__(kind, error, trace)

    def _note(
        self, message: Any, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        said = f"{message} ({filename}:{lineno})"
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename == warnings.__file__:
            frame = frame.f_back
        who = frame.f_code.co_filename
        if said not in self.warnings and (is_ours(who) or not is_library(who)):  # not what PyTorch and Lightning advise
            self.warnings.append(said)

    @property
    def steps(self) -> list[StepReport]:
        """A report of each program."""
        return [StepReport.of(program) for program in self.programs]

    @property
    def findings(self) -> list[str]:
        """What this appliance accepts and another system may not, or what a person may not have meant."""
        found = [] if self.strict else findings(self.steps)  # strictly, the rules find them, with their lines
        return list(dict.fromkeys([*map(str, self.broken), *found, *self.warnings]))
