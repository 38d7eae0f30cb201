"""PyTorch's private surface for autocast: its dispatch keys, its list of operators, its casts (torch 2.13)."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp import autocast_mode

__all__ = ["cpu_operators", "excluded", "no_autocast", "replace_cast"]

no_autocast: Any = torch._C._DisableAutocast
"""Within this context autocast is off for every device, and its state is not touched."""

_CSX_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]


def excluded() -> Any:
    """A context within which autocast of csx does not see operators: what its kernels run in."""
    return torch._C._ExcludeDispatchKeyGuard(_CSX_KEYS)


def cpu_operators() -> list[str]:
    """The aten operators that autocast of the cpu has a kernel for, as `mm` or `conv2d.padding`."""
    names: list[str] = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")
    return sorted(name.removeprefix("aten::") for name in names if name.startswith("aten::"))


def replace_cast(make: Any) -> None:
    """Let `make(cast)` take the place of the function that casts the arguments of `torch.amp.custom_fwd`."""
    autocast_mode._cast = make(autocast_mode._cast)
