"""Names that programs import from `cerebras.pytorch.utils.data.data_executor`."""

from __future__ import annotations

from typing import Any, Literal

from cstorch.utils.data.executor import DataExecutor

__all__ = ["DataExecutor", "MbsSetting"]

MbsSetting = Literal["auto", "explore", "disable"] | int | dict[str, Any] | None
"""What a micro batch size may be: a way to choose it, a number of samples, or bounds to choose within."""
