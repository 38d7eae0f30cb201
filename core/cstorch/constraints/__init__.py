"""What the real system is publicly known to refuse: rules that a traced step is held to when that is asked for.

`cstorch.backends.csx.debug.check_constraints = True` makes a step that breaks a rule raise ConstraintError, with
file and line; `cstorch validate --strict` reports every finding. `RULES` has each rule with its public source. A rule
is silenced by name: `csx.debug.silenced_constraints = ("slicing",)`, or `--silence slicing`.
"""

from cstorch.constraints.report import broken_rule, is_active, report
from cstorch.constraints.rule import RULES, Finding, Rule
from cstorch.constraints.watch import Watch, check_program

__all__ = ["RULES", "Finding", "Rule", "Watch", "broken_rule", "check_program", "is_active", "report"]
