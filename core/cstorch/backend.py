"""`cstorch.backend`: makes the backend of the process, or returns it. The module itself is callable.

Programs use the name both ways: `cstorch.backend("CSX")` and `from cstorch.backend import Backend`.
"""

from __future__ import annotations

import inspect
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from cstorch.backends import csx
from cstorch.backends.base import Backend, BackendType
from cstorch.errors import BackendError
from cstorch.legacy import warn_of_old
from cstorch.tracing.context import context
from cstorch.where import user_line

__all__ = [
    "Backend",
    "BackendType",
    "backend",
    "current_backend",
    "current_backend_impl",
    "current_torch_device",
    "get_backend_args",
    "use_cs",
]


def _csx() -> type[Backend]:
    from cstorch.backends.csx_backend import CsxBackend

    return CsxBackend


def _cpu() -> type[Backend]:
    from cstorch.backends.cpu_backend import CpuBackend

    return CpuBackend


def _gpu() -> type[Backend]:
    from cstorch.backends.gpu_backend import GpuBackend

    return GpuBackend


def _from_plugin(name: str) -> Callable[..., Backend]:
    from cstorch import plugins  # loaded on first use

    return plugins.backend_factory(name)


_KINDS: dict[str, Callable[[], type[Backend]]] = {"CSX": _csx, "CPU": _cpu, "GPU": _gpu}


def backend(backend_type: str | BackendType | None = None, *args: Any, **kwargs: Any) -> Backend:
    """Instantiate a backend, or return the current one (`cerebras.pytorch.backend`).

    Args:
        backend_type: "CSX", "CPU", "GPU" or the name of a backend that a plugin registers, in any case; a BackendType;
            None for the backend that exists.
        *args: Passed to the backend.
        **kwargs: Passed to the backend: see CsxBackend, CpuBackend and GpuBackend.

    Returns:
        The backend. It stays current until `close()`, or the end of a `with` block around it.

    Raises:
        TypeError: the type is not a string, or arguments were given without one.
        ValueError: unknown type.
        BackendError: no type was given and there is no backend; or a backend of another type exists.
        PluginError: the plugin that registered the backend could not make it.
    """
    if backend_type is None:
        if args or kwargs:
            raise TypeError(
                "backend() got arguments but no backend_type. Name the type first, for example "
                'cstorch.backend("CSX", artifact_dir="logs").'
            )
        return _current()
    if isinstance(backend_type, BackendType):
        backend_type = backend_type.name
    if not isinstance(backend_type, str):
        raise TypeError(f'backend_type is a {type(backend_type).__name__}, expected a string: "CSX", "CPU" or "GPU".')
    name = backend_type.upper()
    make = _KINDS[name]() if name in _KINDS else _from_plugin(backend_type)
    existing = context.backend
    if existing is not None and existing.name != name:
        raise BackendError(
            "Cannot instantiate multiple backends. A backend with type "
            f"{existing.name} has already been instantiated. End it with backend.close() first."
        )
    if name in _KINDS:
        _take_old_keywords(kwargs)
    made = make(*args, **kwargs)
    made.name = name
    context.backend = made
    context.kinds[made.backend_type.name] = None
    if len(context.kinds) > 1:
        _report_kinds()
    return made


def _take_old_keywords(kwargs: dict[str, Any]) -> None:
    """Keywords of old releases: what is a flag now is set, what says nothing here is left out; each with a warning."""
    for name in _FLAGS_NOW:
        if name in kwargs:
            value = kwargs.pop(name)
            warn_of_old(f"backend(..., {name}={value!r})", f"Set cstorch.backends.csx.debug.{name}.")
            setattr(csx.debug, name, bool(value))
    for name in _WITHOUT_EFFECT:
        if name in kwargs:
            warn_of_old(f"backend(..., {name}={kwargs.pop(name)!r})", "It has no effect here; leave it out.")


_FLAGS_NOW = ("retrace_every_iteration", "lazy_initialization", "drop_data")
_WITHOUT_EFFECT = ("max_checkpoints", "log_initialization")


def get_backend_args(backend_type: str | BackendType) -> dict[str, inspect.Parameter]:
    """The arguments of a backend by name, without the type.

    Args:
        backend_type: "CSX", "CPU" or "GPU", in any case, or a BackendType.

    Returns:
        The parameters of the class of the backend, in their order.

    Raises:
        ValueError: there is no such type.
    """
    kind = backend_type if isinstance(backend_type, BackendType) else BackendType.from_str(backend_type)
    return dict(inspect.signature(_KINDS[kind.name]()).parameters)


def current_backend_impl(raise_exception: bool = True) -> Backend | None:
    """The current backend, under the name of the reference's inner object.

    Args:
        raise_exception: Raise when there is none; otherwise None is returned.

    Returns:
        The backend, or None.

    Raises:
        BackendError: there is no backend and `raise_exception` is set.
    """
    return current_backend(raise_exception, raise_warning=False)


def _report_kinds() -> None:
    from cstorch import constraints

    if constraints.is_active():
        detail = f"backends of the types {', '.join(context.kinds)} were made in this process"
        constraints.report([constraints.Finding(constraints.RULES["device-types"], user_line(), detail)])


def _current() -> Backend:
    if context.backend is None:
        raise BackendError('no backend has been instantiated. Make one first, for example cstorch.backend("CSX").')
    current: Backend = context.backend
    return current


def current_backend(raise_exception: bool = True, raise_warning: bool = True) -> Backend | None:
    """DEPRECATED: use `cstorch.backend()`. The current backend (`cerebras.pytorch.current_backend`).

    Args:
        raise_exception: Raise when there is no backend; otherwise None is returned.
        raise_warning: Warn that this function is deprecated.

    Returns:
        The backend that the last `cstorch.backend(...)` made and that is not closed; or None.

    Raises:
        BackendError: there is no backend and `raise_exception` is set.
    """
    if raise_warning:
        warnings.warn(
            "cstorch.current_backend() is deprecated; write cstorch.backend() instead.",
            DeprecationWarning,
            stacklevel=2,
        )
    if context.backend is None and not raise_exception:
        return None
    return _current()


def current_torch_device() -> torch.device:
    """The torch device of the current backend (`cerebras.pytorch.current_torch_device`).

    Returns:
        `csx:0` on CSX, a cuda device on GPU; the cpu on CPU and where there is no backend.
    """
    return torch.device("cpu") if context.backend is None else _current().torch_device


def use_cs() -> bool:
    """Whether the active device is a CSX device (`cerebras.pytorch.use_cs`).

    Returns:
        False, too, where there is no backend.
    """
    return context.backend is not None and _current().is_csx


class _CallableModule(types.ModuleType):
    """Lets the module `cstorch.backend` be called as the function of that name."""

    def __call__(self, backend_type: str | BackendType | None = None, *args: Any, **kwargs: Any) -> Backend:
        return backend(backend_type, *args, **kwargs)


_CallableModule.__call__.__doc__ = backend.__doc__
sys.modules[__name__].__class__ = _CallableModule
