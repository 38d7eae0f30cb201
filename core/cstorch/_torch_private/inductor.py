"""PyTorch's private surface for compiling: AOTInductor and the runner of its libraries (torch 2.13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

__all__ = ["aot_compile", "cpp_compiler", "load_library"]


def aot_compile(graph: fx.GraphModule, example: list[torch.Tensor], options: dict[str, Any]) -> str:
    """Compile `graph` into a shared library; the path of the library."""
    import torch._inductor as inductor

    path = inductor.aot_compile(graph, tuple(example), options=options)
    assert isinstance(path, str), f"expected the path of a library, got {path!r}"
    return path


def load_library(path: str) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
    """Load a library that `aot_compile` made; the call that runs it."""
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(path, 1)  # type: ignore[call-arg]
    run: Callable[[list[torch.Tensor]], list[torch.Tensor]] = runner.run  # type: ignore[assignment]
    return run


def cpp_compiler() -> str:
    """The C++ compiler that Inductor calls. Raises when there is none."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    return get_cpp_compiler()
