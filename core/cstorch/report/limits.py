"""The memory limits of `backends.csx.debug`, held against the estimates of a program before it runs."""

from __future__ import annotations

from cstorch.backends import csx
from cstorch.compiler.made import Made
from cstorch.errors import MemoryLimitError
from cstorch.report.step import StepReport
from cstorch.sizes import size_text

_GI = 2**30
_LIMITS = {
    "wgt_memory_gi": (
        "state_bytes",
        "parameters, optimizer state, buffers and gradients that are kept",
        "take fewer parameters, an optimizer with less state, or weights of fewer bits with model.to(torch.bfloat16)",
    ),
    "act_memory_gi": (
        "activation_bytes",
        "activations and gradients that are there at once",
        "give the step a smaller batch, or recompute activations with torch.utils.checkpoint",
    ),
    "execute_crd_memory_gi": (
        "peak_bytes",
        "state, inputs, activations and gradients together",
        "give the step a smaller batch, or divide it among more systems with ClusterConfig(num_csx=...)",
    ),
}


def check_limits(report: StepReport) -> None:
    """Compare the estimates of a program with the limits that are set.

    Args:
        report: The report of the program.

    Raises:
        MemoryLimitError: an estimate is above its limit; the message has both, and what to do.
    """
    for name, (attribute, what, advice) in _LIMITS.items():
        limit, estimate = getattr(csx.debug, name), getattr(report, attribute)
        if limit is not None and estimate > limit * _GI:
            raise MemoryLimitError(
                f"the step {report.step!r} takes an estimated {size_text(estimate)} for {what}, and "
                f"cstorch.backends.csx.debug.{name} = {limit:g} allows {size_text(limit * _GI)}. It has not been run. "
                f"Raise the limit (None is none), or {advice}."
            )


def check_compile(step: str, made: Made | None) -> None:
    """Compare the memory that compiling a program took with the limit that is set.

    Args:
        step: The name of the step.
        made: How its executable was made; None where that is not known.

    Raises:
        MemoryLimitError: it took more.
    """
    limit = csx.debug.compile_crd_memory_gi
    if limit is not None and made is not None and made.peak_bytes > limit * _GI:
        raise MemoryLimitError(
            f"compiling the step {step!r} took {size_text(made.peak_bytes)}, and "
            f"cstorch.backends.csx.debug.compile_crd_memory_gi = {limit:g} allows {size_text(limit * _GI)}. It has not "
            "been run. Raise the limit (None is none); the program is in the cache now, and is loaded from there next "
            "time."
        )
