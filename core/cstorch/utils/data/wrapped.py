"""A loader that is made restartable by another one around it, which otherwise looks like it."""

from __future__ import annotations

from typing import Any


class WrappedLoader:
    """What restartable loaders around another one have in common.

    Args:
        loader: The loader.

    Attributes:
        wrapped: The loader.
    """

    def __init__(self, loader: Any) -> None:
        self.wrapped = loader

    @property
    def goes_on(self) -> bool:
        """Whether the next epoch is one that began in an earlier run."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["wrapped"], name)

    def __len__(self) -> int:
        return len(self.wrapped)


def unwrapped(loader: Any) -> Any:
    """What the input function returned."""
    return loader.wrapped if isinstance(loader, WrappedLoader) else loader
