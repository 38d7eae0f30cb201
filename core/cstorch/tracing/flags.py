"""Global flags, PyTorch's and ours, that change what a step does: part of what a program is known by."""

from __future__ import annotations

from typing import Any

import torch

from cstorch._torch_private.tracing import any_autocast, default_device, deterministic
from cstorch.backends import csx
from cstorch.device.registration import NAME
from cstorch.tracing.anomaly import looks_for_nan

_NAMES = (
    "torch.is_grad_enabled()",
    "inference mode",
    "torch.use_deterministic_algorithms",
    "the default dtype",
    "the default device",
    "csx.precision.optimization_level",
    "torch.autograd.detect_anomaly",
    "csx.performance.micro_batch_size",
)
_AUTOCAST = (torch.is_autocast_enabled, torch.get_autocast_dtype)


def flags() -> tuple[Any, ...]:
    """The present values; asked at every call of a step."""
    if any_autocast():
        return (*_plain(), torch.is_autocast_cache_enabled(), *(f(kind) for kind in (NAME, "cpu") for f in _AUTOCAST))
    return _plain()


def _plain() -> tuple[Any, ...]:
    micro_batch = csx.performance.micro_batch_size
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        deterministic(),
        torch.get_default_dtype(),
        default_device(),
        csx.precision.optimization_level,
        looks_for_nan(),
        micro_batch if type(micro_batch) is not dict else str(micro_batch),
    )


def flag_difference(before: tuple[Any, ...], now: tuple[Any, ...]) -> str:
    """Which flag differs, in words."""
    for name, old, new in zip(_NAMES, before, now, strict=False):
        if old != new:
            return f"{name} was {old} when the step was traced and is {new} now"
    return "the state of torch.autocast is another than when the step was traced"
