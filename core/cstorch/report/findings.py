"""What this appliance accepts of a program and a real system may not: portability warnings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from cstorch.report.step import StepReport


def findings(steps: Iterable[StepReport]) -> list[str]:
    """Portability warnings about programs, each with what to do instead.

    Args:
        steps: The reports of all programs of a run.
    """
    by_name: dict[str, list[StepReport]] = defaultdict(list)
    for step in steps:
        by_name[step.step].append(step)
    found = []
    for name, programs in by_name.items():
        settled = [step for step in programs if not step.makes_state]
        if len(settled) > 1:
            found.append(
                f"the step {name!r} becomes {len(settled)} programs; a system loads one for a run. Give it batches of "
                "one shape, for example with drop_last=True, and keep its settings as they are."
            )
        shapes = list(dict.fromkeys(", ".join(step.inputs) for step in settled))
        if len(shapes) > 1:
            found.append(
                f"the step {name!r} has dynamic shapes: it is given ({'), ('.join(shapes)}). A system compiles for one "
                "shape. Pad batches to one size, or drop the last short one with drop_last=True."
            )
    for step in (step for programs in by_name.values() for step in programs):
        if not step.outputs:
            found.append(
                f"the step {step.step!r} returns no tensor and gives none to a closure: a system has nothing "
                "to compute for it. Return the loss."
            )
        if step.has_double:
            found.append(f"the step {step.step!r} computes in float64, which no system has. Make its tensors float32.")
    return list(dict.fromkeys(found))
