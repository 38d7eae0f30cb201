"""The plugin: `cstorch.backend("jax")`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cstorch.plugins import hookimpl

if TYPE_CHECKING:
    from cstorch.backend import Backend
    from cstorch.plugins import BackendRegistry


def _make(*args: Any, **kwargs: Any) -> Backend:
    from cstorch_jax.backend import JaxBackend  # JAX takes a second to import: not before it is used

    return JaxBackend(*args, **kwargs)


@hookimpl
def cstorch_register_backends(registry: BackendRegistry) -> None:
    """Register the backend."""
    registry.register("jax", _make)
