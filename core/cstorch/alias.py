"""`cstorch` under the names that programs know the reference by: every module below them is the very same object."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Sequence

from cstorch.errors import BackendError


class _AliasFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers an import of `<alias>.x` with the module `cstorch.x`.

    Args:
        alias: The other name of the package `cstorch`.
    """

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(self._alias + "."):
            return None
        real = "cstorch" + fullname[len(self._alias) :]
        if importlib.util.find_spec(real) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = importlib.import_module("cstorch" + spec.name[len(self._alias) :])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        # The import system has just written the alias's spec into the module: put its own back.
        spec = module.__spec__
        if spec is not None and spec.loader is self:
            module.__spec__ = spec.loader_state


def _refuse_the_reference() -> None:
    """Two distributions under one name: whichever is installed last has overwritten files of the other."""
    for name in ("cerebras-pytorch", "cerebras_pytorch"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        raise BackendError(
            f"{name} {version}, the reference implementation, is installed beside lightning-cerebras, and both are "
            "`cerebras.pytorch`. Keep one: `pip uninstall cerebras-pytorch` to run on this machine (and reinstall "
            "lightning-cerebras, whose files it may have replaced), or use an environment of its own for each. "
            "`import cstorch` works either way."
        )


def install(alias: str) -> None:
    """Make `alias` another name of `cstorch` and of the modules below it.

    Args:
        alias: The name, which is being imported.

    Raises:
        BackendError: the reference implementation is installed, too.
    """
    _refuse_the_reference()
    sys.meta_path.insert(0, _AliasFinder(alias))
    sys.modules[alias] = sys.modules["cstorch"]
