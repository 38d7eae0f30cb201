"""Registers the device name "csx" with PyTorch, once per process."""

from __future__ import annotations

from typing import Any

import torch

from cstorch._torch_private.device import BackendModule, register_backend
from cstorch._torch_private.unwinding import let_errors_pass
from cstorch.errors import BackendError

NAME = "csx"


class _DeviceModule(BackendModule):  # type: ignore[misc]
    """What PyTorch calls as `torch.csx`. Random numbers are those of the cpu generator."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def synchronize(self, device: Any = None) -> None:
        """Do nothing: a step has ended when its call returns."""


def _register() -> torch.device:
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", NAME):
        raise BackendError(
            f"PyTorch has room for one external device and it is taken by {taken!r}, so {NAME!r} cannot be "
            f"registered. Import cstorch in a process that does not load the package behind {taken!r}."
        )
    if not hasattr(torch, NAME):
        register_backend(NAME, _DeviceModule())
        let_errors_pass()
    return torch.device(NAME, 0)


CSX: torch.device = _register()
"""The device, `torch.device("csx", 0)`."""
