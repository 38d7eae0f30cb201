"""PyTorch's private surface for compiling: AOTInductor and the runner of its libraries (torch 2.13)."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import fx

logger = logging.getLogger("cstorch.compile")

__all__ = ["aot_compile", "check_descriptions", "cpp_compiler", "load_library", "lower_as_buffer"]


def aot_compile(graph: fx.GraphModule, example: list[torch.Tensor], options: dict[str, Any]) -> str:
    """Compile `graph` into a shared library; the path of the library."""
    import torch._inductor as inductor
    from torch._inductor.exc import InductorError

    try:
        with _lean_runtime():
            path = inductor.aot_compile(graph, tuple(example), options=options)
    except InductorError as error:
        logger.info("compiling again, against PyTorch's own runtime: %s", str(error).splitlines()[0])
        path = inductor.aot_compile(graph, tuple(example), options=options)
    assert isinstance(path, str), f"expected the path of a library, got {path!r}"
    return path


def check_descriptions(folder: Path) -> None:
    """Raise when a library compiled into `folder` could not call an operator that has no C entry point.

    The library passes whole numbers that an operator takes by keyword, but their description leaves them out where
    they have their default values (torch 2.13), and the call fails when the program runs.

    Raises:
        NotImplementedError: naming the operator.
    """
    for file in folder.glob("*.wrapper.json"):
        for entry in json.loads(file.read_text())["nodes"]:
            name, described = entry["node"]["target"], {given["name"] for given in entry["node"]["inputs"]}
            if "::" not in name or name.count(".") > 1:
                continue
            operator, _, overload = name.partition(".")
            for argument in torch._C._get_schema(operator, overload).arguments:
                is_number = str(argument.type) in ("int", "number")
                if argument.kwarg_only and is_number and argument.name not in described:
                    raise NotImplementedError(f"{name} cannot be called with the default of {argument.name!r}")


RUNTIME = Path(__file__).with_name("runtime.h")
_FULL_HEADER = "#include <torch/csrc/inductor/aoti_include/cpu.h>"
_CHECKS = re.compile(
    r"AOTI_NOINLINE static void check_input_\d+\((?:.|\n)*?\n\}\n"
    r"|^ *check_input_\d+\(input_handles\);\n"
    r"|^ *if \(_check_aoti_runtime_check_inputs_env\(\)\) \{ assert_size_stride\(.*\); \}\n",
    re.MULTILINE,
)


def lean_source(code: str, interface: str) -> str | None:
    """Generated C++ with `runtime.h` in place of PyTorch's runtime and without the checks of inputs.

    Shapes and dtypes of inputs are guarded before a call, so the checks would never fire.

    Args:
        code: What AOTInductor generated around the kernels.
        interface: PyTorch's entry points, which are part of `code`.

    Returns:
        The new source, or None when the program needs what the lean runtime lacks: constants, or operators
        without a C entry point.
    """
    constants = re.search(r": AOTInductorModelBase\(\d+,\s*\d+,\s*(\d+),", code)
    if interface not in code or _FULL_HEADER not in code or constants is None or constants[1] != "0":
        return None
    if "proxy_executor_call_function" in code:
        return None
    lean = code.replace(interface, "").replace(_FULL_HEADER, f"#include <{RUNTIME}>")
    return _CHECKS.sub("", lean)


@contextlib.contextmanager
def _lean_runtime() -> Iterator[None]:
    """AOTInductor compiles against `runtime.h` within, where the program allows it."""
    from torch._inductor import codecache

    interface = (Path(codecache.__file__).parent / "codegen" / "aoti_runtime" / "interface.cpp").read_text()
    compile_before = codecache.AotCodeCompiler.__dict__["compile"]
    header_before = codecache._get_cpp_wrapper_header
    lean = False

    def compile_lean(cls: type, graph: Any, wrapper_code: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal lean
        source = lean_source(wrapper_code, interface.strip())
        lean = source is not None
        return compile_before.__func__(cls, graph, wrapper_code if source is None else source, *args, **kwargs)

    def header(device: str, aot_mode: bool = False) -> str:
        return str(RUNTIME) if lean and aot_mode else header_before(device, aot_mode=aot_mode)

    codecache.AotCodeCompiler.compile = classmethod(compile_lean)  # type: ignore[assignment]
    codecache._get_cpp_wrapper_header = header
    try:
        yield
    finally:
        codecache.AotCodeCompiler.compile = compile_before  # type: ignore[method-assign]
        codecache._get_cpp_wrapper_header = header_before


@functools.cache
def lower_as_buffer(operator: torch._ops.OpOverload) -> None:
    """Make Inductor lower `operator`, an identity, to a buffer of its own."""
    from torch._inductor.lowering import register_lowering

    def realize(x: Any) -> Any:
        x.realize()
        return x

    register_lowering(operator, type_promotion_kind=None)(realize)


def load_library(path: str) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
    """Load a library that `aot_compile` made; the call that runs it."""
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(path, 1)
    run: Callable[[list[torch.Tensor]], list[torch.Tensor]] = runner.run
    return run


def cpp_compiler() -> str:
    """The C++ compiler that Inductor calls. Raises when there is none."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    return get_cpp_compiler()
