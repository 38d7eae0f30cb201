"""Names of `cerebras.pytorch.sparse` that programs ask for; sparse weights are not part of this implementation."""

from __future__ import annotations

from typing import Any, NoReturn

_ADVICE = (
    "weight sparsity is not part of this implementation. Multiply the weights by masks that are buffers of the model, "
    "or train dense: leave `sparsity` out of the configuration."
)


class SparsityAlgorithm:
    """What sparsity algorithms are instances of; there are none here.

    Raises:
        NotImplementedError: when one is made.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__}: {_ADVICE}")


def configure(*args: Any, **kwargs: Any) -> NoReturn:
    """Make an algorithm of a configuration: not available.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(f"cstorch.sparse.configure: {_ADVICE}")
