"""The executor under the module name of the reference, and the type of one of its old arguments."""

from typing import Literal

from cstorch.utils.data.executor import DataExecutor

MbsSetting = None | int | Literal["explore", "auto"] | dict[str, dict[str, int]]
"""What `DataExecutor(micro_batch_size=...)` is given by old programs; it has no effect here."""

__all__ = ["DataExecutor", "MbsSetting"]
