"""Names of `cerebras.pytorch.experimental` that programs ask for."""

from cstorch.absent import absent
from cstorch.experimental import listener

_LOOP = (
    "Generate token by token in a Python loop around a traced step: give it the tokens so far, padded to one length, "
    "and read the next one in a step closure."
)

start_implicit_loop = absent("cstorch.experimental.start_implicit_loop", _LOOP)
update_implicit_loop = absent("cstorch.experimental.update_implicit_loop", _LOOP)
get_loop_iteration_slice = absent("cstorch.experimental.get_loop_iteration_slice", _LOOP)
Compression = absent(
    "cstorch.experimental.Compression",
    "Weights are not compressed on their way, as host and programs share memory: leave `compression` out.",
)

__all__ = ["Compression", "get_loop_iteration_slice", "listener", "start_implicit_loop", "update_implicit_loop"]
