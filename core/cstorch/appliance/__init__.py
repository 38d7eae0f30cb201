"""An Executable runs: in this process, or on several systems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cstorch.appliance.base import Appliance

if TYPE_CHECKING:
    from cstorch.appliance.portable import PortableProgram

__all__ = ["Appliance", "PortableProgram"]


def __getattr__(name: str) -> Any:
    if name == "PortableProgram":  # the compiler is not imported before it is used
        from cstorch.appliance.portable import PortableProgram

        return PortableProgram
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
