"""`cstorch info`: what one pastes into a bug report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import click
import torch

import cstorch
from cstorch._torch_private.inductor import cpp_compiler
from cstorch.command_line.output import as_json, write_json
from cstorch.compiler import cache
from cstorch.compiler.native import has_compiler
from cstorch.sizes import size_text

_PACKAGES = (
    "torch",
    "lightning",
    "pytorch-lightning",
    "numpy",
    "h5py",
    "tensorboard",
    "pluggy",
    "xxhash",
    "hdf5plugin",
)
_VARIABLES = re.compile(r"CSTORCH_|OMP_|MKL_|TORCH|KMP_|CXX$|XDG_CACHE_HOME$")


@click.command()
@as_json
def info(json_: bool) -> None:
    """Show versions, compiler, processor, compile cache, plugins and the Lightning binding."""
    found = _found()
    if json_:
        write_json(found)
        return
    for section, values in found.items():
        click.echo(section)
        for name, value in values.items() if isinstance(values, dict) else ((str(v), "") for v in values or ["none"]):
            click.echo(f"  {name:18} {value}".rstrip())


def _found() -> dict[str, Any]:
    return {
        "versions": {
            "cstorch": cstorch.__version__,
            "python": sys.version.split()[0],
            **{name: _version(name) for name in _PACKAGES},
        },
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
            "threads": torch.get_num_threads(),
            "memory": size_text(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        },
        "compiler": _compiler(),
        "compile cache": _cache(),
        "plugins": _plugins(),
        "lightning": _lightning(),
        "environment": {name: value for name, value in sorted(os.environ.items()) if _VARIABLES.match(name)},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _compiler() -> dict[str, str]:
    if not has_compiler():
        return {"path": "none: programs are interpreted"}
    path = shutil.which(cpp_compiler()) or ""
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        answer = ""
    return {"path": path, "version": (answer.splitlines() or ["unknown"])[0]}


def _cache() -> dict[str, Any]:
    folder = cache.cache_folder(None)
    entries = cache.entries(folder)
    return {"folder": str(folder), "programs": len(entries), "size": size_text(sum(entry.size for entry in entries))}


def _plugins() -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is wrong with one is in the list
        return [
            f"{plugin}{f': left out, {plugin.problem}' if plugin.problem else ''}" for plugin in cstorch.plugins.list()
        ]


def _lightning() -> dict[str, str]:
    """Whether `Trainer(accelerator="csx")` is known, asked of a process of its own, as Lightning takes seconds."""
    asked = "from lightning.pytorch.accelerators import AcceleratorRegistry as r; print('csx' in r)"
    try:
        answer = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return {'accelerator="csx"': "unknown: importing Lightning took over two minutes"}
    if answer.returncode:
        return {'accelerator="csx"': f"Lightning cannot be imported: {answer.stderr.strip().splitlines()[-1]}"}
    return {
        'accelerator="csx"': "known" if answer.stdout.strip() == "True" else "not known: install lightning-cerebras"
    }
