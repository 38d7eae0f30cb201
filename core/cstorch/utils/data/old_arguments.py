"""Arguments that a DataExecutor took in old releases, and where they belong now."""

from __future__ import annotations

from typing import Any

from cstorch.distributed.cluster_config import ClusterConfig
from cstorch.errors import BackendError
from cstorch.legacy import warn_of_old


def take_old_arguments(backend: Any, cs_config: Any, micro_batch_size: Any, listeners: Any) -> None:
    """Do what the arguments say, with a warning for each that is given.

    Args:
        backend: The backend.
        cs_config: A ClusterConfig (or `cstorch.utils.CSConfig`), or None.
        micro_batch_size: Anything; only None is silent.
        listeners: A list, or None.

    Raises:
        TypeError: `cs_config` is something else.
        BackendError: it asks for another number of systems than the backend has.
        NotImplementedError: there are listeners.
    """
    if cs_config is not None:
        if not isinstance(cs_config, ClusterConfig):
            raise TypeError(f"cs_config is a {type(cs_config).__name__}, expected a ClusterConfig.")
        warn_of_old("DataExecutor(cs_config=...)", "Write cstorch.backend(..., cluster_config=...).")
        present = getattr(backend.cluster_config, "num_csx", 1)
        if backend.is_csx and cs_config.num_csx != present:
            raise BackendError(
                f"cs_config asks for num_csx={cs_config.num_csx} and the backend was made with {present}: systems are "
                'started with the backend. Write cstorch.backend("CSX", cluster_config=...) and leave cs_config out.'
            )
        backend.cluster_config = cs_config
    if micro_batch_size is not None:
        warn_of_old(
            f"DataExecutor(micro_batch_size={micro_batch_size!r})",
            "It has no effect here; set cstorch.backends.csx.performance.micro_batch_size instead.",
        )
    if listeners:
        raise NotImplementedError(
            f"DataExecutor got {len(listeners)} listeners, which are not part of this implementation. Use "
            "cstorch.summarize_tensor in the model and read it with utils.tensorboard.SummaryReader."
        )
