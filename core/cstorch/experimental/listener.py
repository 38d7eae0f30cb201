"""Listeners of tensors: none here, but programs enter a mode with an empty list of them."""

from __future__ import annotations

import contextlib
from typing import Any, NoReturn


def create_listener(*args: Any, **kwargs: Any) -> NoReturn:
    """Make a listener: not available.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        "cstorch.experimental.listener.create_listener: listeners are not part of this implementation. Use "
        "cstorch.summarize_tensor in the model and read it with utils.tensorboard.SummaryReader."
    )


class ListenerMode(contextlib.nullcontext[None]):
    """Within, listeners listen.

    Args:
        listeners: Of them, none.
    """

    def __init__(self, listeners: list[Any]) -> None:
        super().__init__()
        self.listeners = list(listeners)
