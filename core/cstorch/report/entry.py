"""One program in the report of a run: its StepReport, its graph in words, and how it was compiled."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from cstorch.compiler.made import Made
from cstorch.report.step import StepReport


@dataclass
class Entry:
    """A program of a run.

    Attributes:
        number: Counts the programs of a backend from 1.
        report: What it is made of.
        graph: Its graph, for a person.
        made: How its executable was made; None as long as there is none, or where an appliance elsewhere makes it.
        explored: The seconds that a step took by the size of its micro-batches, where several were tried.
    """

    number: int
    report: StepReport
    graph: str
    made: Made | None = None
    explored: dict[int, float] = field(default_factory=dict)

    @property
    def graph_file(self) -> str:
        """The name of the file that holds the graph."""
        safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in self.report.step)
        return f"graph_{self.number}_{safe}.txt"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **dataclasses.asdict(self.report),
            "activation_bytes": self.report.activation_bytes,
            "peak_bytes": self.report.peak_bytes,
            "graph": self.graph_file,
            "explored": self.explored,
            "compiled": None if self.made is None else dataclasses.asdict(self.made),
        }
