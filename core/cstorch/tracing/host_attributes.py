"""Numbers that an object's own methods assign, such as a count or an annealed weight, are read anew at each step.

A number that only the constructor assigns is configuration: a guard, part of the program. One that another method
assigns (`self.calls += 1`, `self.beta = 0.1 * self.current_epoch`) will be another number soon, so while a step is
traced it is a host scalar, and what the step assigns to it is assigned again after each run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from cstorch.tracing.attribute_reads import MISSING
from cstorch.tracing.code_names import assigned_by_methods
from cstorch.tracing.scalars import ScalarScope, is_number, make_scalar
from cstorch.tracing.surroundings import LIBRARIES, Holder


class HostAttributes:
    """The numbers among the attributes of what a step can reach, while the step is traced.

    Args:
        scope: The scalars of the trace.
        holders: What holds values; of interest are those of objects.
    """

    def __init__(self, scope: ScalarScope, holders: Iterable[Holder]) -> None:
        self._standing_in: list[tuple[dict[str, Any], str, Any, Any]] = []
        for holder in holders:
            owner = holder.owner
            if owner is None or holder.internal:
                continue
            label = type(owner).__name__ if isinstance(owner, nn.Module) else holder.name
            for name in sorted(assigned_by_methods(type(owner), LIBRARIES)):
                before = vars(owner).get(name, MISSING)
                value: Any = getattr(type(owner), name, None) if before is MISSING else before
                if is_number(value):
                    scalar = make_scalar(scope, f"{scope.host.name(owner, label)}.{name}", value)
                    self._standing_in.append((vars(owner), name, before, scalar))
                    holder.anew.add(name)
                    if before is not MISSING:
                        holder.before[name] = before
                    vars(owner)[name] = scalar

    def conceal(self) -> None:
        """Put back the numbers that the step has not assigned."""
        for attributes, name, before, scalar in self._standing_in:
            if attributes.get(name) is not scalar:
                continue
            if before is MISSING:
                del attributes[name]
            else:
                attributes[name] = before
