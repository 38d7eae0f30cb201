"""`cstorch.name_scope`: a name for the operations of a part of a traced step, shown in its report."""

from __future__ import annotations

import contextlib
from types import TracebackType

from cstorch.tracing.context import context


class name_scope(contextlib.ContextDecorator):  # noqa: N801  the reference's name
    """Operations recorded within bear this name in the readable graph of the report (`cerebras.pytorch.name_scope`).

    Used as `with cstorch.name_scope("lr"):` or as a decorator; scopes nest. Values are not changed, and the backward
    pass of the operations, which runs later, is not named.

    Args:
        name: A name, not empty.

    Raises:
        ValueError: it is none.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"name_scope got {name!r}, expected a text that is not empty.")
        self.name = name
        self._before: list[str] = []

    def __enter__(self) -> name_scope:
        self._before.append(context.scope)
        context.scope = f"{context.scope}/{self.name}" if context.scope else self.name
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context.scope = self._before.pop()
