"""Every error that cstorch raises on purpose.

CstorchError
 ├── BackendError            (RuntimeError)  no backend, a second backend, a backend asked for what it cannot do
 │    ├── MemoryLimitError   a program that would take more memory than a flag allows
 │    ├── MicroBatchError    a program that cannot be run in micro-batches of the size that is asked for
 │    └── NotExecutedError   results were needed of a step that was only traced or compiled
 ├── ConstraintError         (RuntimeError)  a step that the real system is known to refuse, where that is asked for
 ├── CheckpointError         (RuntimeError)  a checkpoint that cannot be written, is damaged or of an unknown kind
 │    └── CheckpointNotFoundError  (FileNotFoundError)  a checkpoint that does not exist
 ├── CheckpointContentError  (TypeError)     an object that a checkpoint has no safe form for
 ├── PluginError             (RuntimeError)  a plugin that is broken, asked for by name or registered by the program
 ├── DataError               (RuntimeError)  a dataloader that yields nothing, or not what was traced
 └── TraceError              (RuntimeError)  a step that cannot become a program
      ├── ValueReadError                     reading a tensor whose value is not there yet
      ├── OptimizerError                     an optimizer that cannot be traced
      │    └── ClosureNotCalledError         an optimizer that ignores the closure of its step
      ├── StateError                         state that the step replaces in a way that a replay cannot repeat
      └── ProgramLimitError                  the inputs of a step change so often that it never settles

Each also derives from the builtin that the API specification names, so `except RuntimeError` keeps working.
"""

from __future__ import annotations


class CstorchError(Exception):
    """Base of all errors raised by cstorch."""


class BackendError(CstorchError, RuntimeError):
    """A backend is missing, exists already, or cannot do what was asked."""


class MemoryLimitError(BackendError):
    """A program would take more memory than a flag of `backends.csx.debug` allows."""


class MicroBatchError(BackendError):
    """A program cannot run in micro-batches of the size that `backends.csx.performance.micro_batch_size` asks for."""


class NotExecutedError(BackendError):
    """Results were needed of a step on a backend that only validates or compiles."""


class ConstraintError(CstorchError, RuntimeError):
    """A program breaks a rule of the real system, and `csx.debug.check_constraints` is set."""


class CheckpointError(CstorchError, RuntimeError):
    """A checkpoint file cannot be written or read."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """A checkpoint file does not exist."""


class CheckpointContentError(CstorchError, TypeError):
    """An object cannot be saved in a form that is safe to load."""


class PluginError(CstorchError, RuntimeError):
    """A plugin that the program asked for cannot be used."""


class DataError(CstorchError, RuntimeError):
    """A dataloader gave nothing, or something else than was expected."""


class TraceError(CstorchError, RuntimeError):
    """A step function cannot be traced into one program."""


class ValueReadError(TraceError):
    """The contents of a tensor were asked for where no contents exist."""


class OptimizerError(TraceError):
    """An optimizer cannot be part of a traced step."""


class ClosureNotCalledError(OptimizerError):
    """An optimizer was given a closure for its step and ignored it."""


class StateError(TraceError):
    """A step replaces state in a way that cannot be carried from replay to replay."""


class ProgramLimitError(TraceError):
    """A step function was traced into too many programs."""


def words(error: BaseException) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
