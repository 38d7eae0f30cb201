"""Errors that programs raise and catch (`cerebras.appliance.errors`).

Only `ApplianceNanError` is for programs to raise; errors of a run are those of `cstorch.errors`.
"""

from cstorch.absent import anything_of

__getattr__ = anything_of("cerebras.appliance.errors", "Catch the errors of cstorch.errors, or RuntimeError.")


class ApplianceNanError(RuntimeError):
    """A value that must be finite is not; raised by programs that look."""


class ApplianceUnknownError(RuntimeError):
    """An error of a cluster; nothing here raises it."""


class ApplianceDeadlockError(RuntimeError):
    """A deadlock on a cluster; nothing here raises it."""


class ApplianceCompilationError(RuntimeError):
    """A compilation failed on a cluster; nothing here raises it."""
