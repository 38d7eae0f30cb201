"""`cerebras.pytorch` is cstorch under the reference's name: every module below it is the very same object."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Sequence

import cstorch

_ALIAS = __name__


class _AliasFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers an import of `cerebras.pytorch.x` with the module `cstorch.x`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(_ALIAS + "."):
            return None
        real = "cstorch" + fullname[len(_ALIAS) :]
        if importlib.util.find_spec(real) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = importlib.import_module("cstorch" + spec.name[len(_ALIAS) :])
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
        raise cstorch.errors.BackendError(
            f"{name} {version}, the reference implementation, is installed beside lightning-cerebras, and both are "
            "`cerebras.pytorch`. Keep one: `pip uninstall cerebras-pytorch` to run on this machine (and reinstall "
            "lightning-cerebras, whose files it may have replaced), or use an environment of its own for each. "
            "`import cstorch` works either way."
        )


_refuse_the_reference()
sys.meta_path.insert(0, _AliasFinder())
sys.modules[_ALIAS] = cstorch
