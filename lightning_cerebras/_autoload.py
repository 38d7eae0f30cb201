"""Binds to Lightning when Lightning is imported. Uses the standard library alone, and never raises.

PyTorch calls `install` at the end of `import torch` (entry point group `torch.backends`). An exception here would break
`import torch` for everybody on the machine, so anything unexpected becomes a warning.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
import warnings
from collections.abc import Sequence

_BINDINGS = {
    "lightning.pytorch.trainer.connectors.accelerator_connector": "lightning_cerebras._bind_lightning",
    "pytorch_lightning.trainer.connectors.accelerator_connector": "lightning_cerebras._bind_pytorch_lightning",
}


def _bind(connector: str) -> None:
    try:
        importlib.import_module(_BINDINGS[connector])
    except Exception as error:
        warnings.warn(
            f"lightning_cerebras could not add accelerator='csx' to Lightning: {type(error).__name__}: {error}",
            stacklevel=2,
        )


class _Loader(importlib.abc.Loader):
    """Loads the connector module as usual, then binds."""

    def __init__(self, wrapped: importlib.abc.Loader) -> None:
        self._wrapped = wrapped

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._wrapped.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self._wrapped.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._wrapped
        module.__loader__ = self._wrapped
        _bind(module.__name__)


class _Finder(importlib.abc.MetaPathFinder):
    """Steps in for the two connector modules only."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _BINDINGS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def install() -> None:
    """Bind to Lightning as soon as it is imported, or now where it is imported already. Repeating it is harmless."""
    try:
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())
        for connector in _BINDINGS:
            if connector in sys.modules and hasattr(sys.modules[connector], "_AcceleratorConnector"):
                _bind(connector)
    except Exception as error:
        warnings.warn(f"lightning_cerebras could not be set up: {error}", stacklevel=2)
