"""`cstorch.sparse.configure`, a module that is called like a function, as programs use it in both ways."""

from __future__ import annotations

import sys
import types
from typing import Any, NoReturn

import torch

ADVICE = (
    "Multiply the weights by masks that are buffers of the model, or train dense: leave `sparsity` out of the "
    "configuration."
)


def configure(*args: Any, **kwargs: Any) -> NoReturn:
    """Make an algorithm of a configuration: not available.

    Args:
        args: Of the reference.
        kwargs: Of the reference.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(f"cstorch.sparse.configure is not part of this implementation. {ADVICE}")


def default_sparse_param_filter(name: str, param: torch.nn.Parameter) -> NoReturn:
    """Which parameters become sparse: not available.

    Args:
        name: Of the parameter.
        param: The parameter.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        "cstorch.sparse.configure.default_sparse_param_filter is not part of this implementation. To choose "
        f"parameters by name, use cstorch.utils.utils.make_param_filter. {ADVICE}"
    )


class _CallableModule(types.ModuleType):
    """Lets the module `cstorch.sparse.configure` be called as the function of that name."""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        configure(*args, **kwargs)


_CallableModule.__call__.__doc__ = configure.__doc__
sys.modules[__name__].__class__ = _CallableModule
