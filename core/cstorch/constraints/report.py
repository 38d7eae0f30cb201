"""What becomes of findings: an error where the flag is set, a list where a program is validated."""

from __future__ import annotations

from collections.abc import Iterable

from cstorch.backends import csx
from cstorch.constraints.rule import RULES, Finding, Rule
from cstorch.errors import ConstraintError, ValueReadError
from cstorch.tracing.context import context


def is_active() -> bool:
    """Whether steps are held to the rules: by csx.debug.check_constraints or `cstorch validate --strict`."""
    return csx.debug.check_constraints or _is_listing()


def _is_listing() -> bool:
    return context.validation is not None and context.validation.strict


def report(findings: Iterable[Finding]) -> None:
    """List `findings` that are not silenced where a program is validated strictly; raise them elsewhere.

    Raises:
        ConstraintError: there are some, and no list to put them in.
    """
    heard = [f for f in dict.fromkeys(findings) if f.rule.name not in csx.debug.silenced_constraints]
    if _is_listing():
        context.validation.broken.extend(heard)
    elif heard:
        lines = "".join(f"\n  - {finding}" for finding in heard)
        raise ConstraintError(
            f"the real system is publicly known to refuse this:{lines}\nChange the program, or silence a rule with "
            f"cstorch.backends.csx.debug.silenced_constraints = ({heard[0].rule.name!r},)."
        )


def broken_rule(error: BaseException) -> Rule | None:
    """The rule that a program breaks which cstorch itself refuses with `error`; None for any other error."""
    from cstorch._torch_private.tracing import DATA_DEPENDENT  # what tracing needs is slow to import

    if isinstance(error, ValueReadError):
        return RULES["value-read"]
    return RULES["dynamic-shape"] if isinstance(error.__cause__, DATA_DEPENDENT) else None
