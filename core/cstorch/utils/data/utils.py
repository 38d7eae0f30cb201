"""The names that the API specification keeps in `cerebras.pytorch.utils.data.utils`."""

from cstorch.utils.data.batch_size import infer_batch_size
from cstorch.utils.data.schedule import Schedule

__all__ = ["Schedule", "infer_batch_size"]
