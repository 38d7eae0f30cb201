"""A step as one library for a CUDA device, made by AOTInductor; a folder in the compile cache."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
from torch import fx

from cstorch._torch_private.inductor import aot_compile, check_descriptions, load_gpu_library
from cstorch.compiler import cache
from cstorch.compiler.lock import locked
from cstorch.compiler.made import Made
from cstorch.compiler.progress import CompileProgress
from cstorch.trust import is_trusted


class GpuLibrary:
    """An executable that calls a library on a CUDA device.

    Args:
        graph: The graph, for the device.
        example: Inputs on the device.
        path: Where the library is, or will be, in a folder of its own with the kernels that it loads.
        device: The device.
        name: The name of the step.

    Attributes:
        runs: How often it has run.
        made: How it was made, for reports.

    Raises:
        Exception: whatever keeps it from being compiled.
    """

    def __init__(
        self, graph: fx.GraphModule, example: list[torch.Tensor], path: Path, device: torch.device, name: str
    ) -> None:
        self.runs = 0
        operations = sum(node.op == "call_function" for node in graph.graph.nodes)
        what = f"{name}: {operations} operations"
        with locked(path.parent, what):
            start = time.perf_counter()
            how = "loaded from the cache"
            if not (path.exists() and is_trusted(path)):
                how = "compiled"
                with CompileProgress(what):
                    _compile(graph, example, path)
                cache.describe(path, step=name, operations=operations, seconds=round(time.perf_counter() - start, 1))
            self._run = load_gpu_library(str(path), str(device), str(path.parent))
        self.made = Made(how, time.perf_counter() - start, str(path))

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run the library once."""
        self.runs += 1
        return self._run(inputs)


def _compile(graph: fx.GraphModule, example: list[torch.Tensor], path: Path) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".compiling-", dir=path.parent) as folder:
        made = Path(aot_compile(graph, example, {"aot_inductor.output_path": str(Path(folder) / path.name)}))
        check_descriptions(Path(folder))
        for beside in Path(folder).iterdir():  # kernels, and how to call operators that have no C entry point
            if beside != made and beside.suffix in (".cubin", ".hsaco", ".json"):
                beside.replace(path.parent / beside.name.replace(".wrapper.json", ".json"))
        made.replace(path)  # last: with it the folder is whole
    path.chmod(0o755)
