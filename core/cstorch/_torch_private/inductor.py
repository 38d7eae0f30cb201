"""PyTorch's private surface for compiling: AOTInductor and the runner of its libraries (torch 2.13)."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

logger = logging.getLogger("cstorch.compile")

__all__ = [
    "Epilogue",
    "aot_compile",
    "check_descriptions",
    "cpp_compiler",
    "force_strides",
    "lay_out_again",
    "load_gpu_library",
    "load_library",
    "lower_as_buffer",
    "lower_as_copy",
]


@dataclass(frozen=True)
class Epilogue:
    """C++ that a library runs behind the graph.

    Attributes:
        kernels: Source of functions, compiled as the graph's own kernels are.
        declarations: Of those functions.
        statements: What to run. `input_data[i]` and `output_data[i]` point to the elements of inputs and outputs.
        outputs: How many outputs of the graph are outputs of the library; the others are for the statements alone.
    """

    kernels: str
    declarations: str
    statements: str
    outputs: int


def aot_compile(
    graph: fx.GraphModule,
    example: list[torch.Tensor],
    options: dict[str, Any],
    epilogue: Epilogue | None = None,
    shares_gil: bool = False,
) -> str:
    """Compile `graph` into a shared library; the path of the library.

    Args:
        graph: A functional graph.
        example: Its inputs.
        options: Inductor's.
        epilogue: What the library runs behind the graph.
        shares_gil: Whether other threads may run Python while the library runs.
    """
    import torch._inductor as inductor
    from torch._inductor.exc import InductorError

    if graph.graph.find_nodes(op="call_function", target=torch.ops.higher_order.while_loop):
        example = _fakes(graph, example)
    with warnings.catch_warnings():
        # Inductor copies its own records in a way that PyTorch deprecates.
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
        try:
            with _rewriting(epilogue, shares_gil, is_lean=True):
                path = inductor.aot_compile(graph, tuple(example), options=options)
        except InductorError as error:
            logger.info("compiling again, against PyTorch's own runtime: %s", str(error).splitlines()[0])
            with _rewriting(epilogue, shares_gil, is_lean=False):
                path = inductor.aot_compile(graph, tuple(example), options=options)
    assert isinstance(path, str), f"expected the path of a library, got {path!r}"
    return path


def _fakes(graph: fx.GraphModule, example: list[torch.Tensor]) -> list[torch.Tensor]:
    """Fake inputs for a graph with loops, of fixed shapes but in a mode that knows symbolic ones, as loops ask for."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    fakes: list[torch.Tensor] = [mode.from_tensor(tensor, static_shapes=True) for tensor in example]
    for module in graph.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            node.meta.pop("val", None)  # of another mode
    for node, fake in zip(graph.graph.find_nodes(op="placeholder"), fakes, strict=True):
        node.meta["val"] = fake
    return fakes


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


_RUN = re.compile(
    r"void AOTInductorModel::run_impl\(\s*AtenTensorHandle\*\s*input_handles,[^\n]*\n[^\n]*\n"
    r"\s*AtenTensorHandle\*\s*output_handles,(?:.|\n)*?\n\) \{\n"
)
_END = "} // AOTInductorModel::run_impl"
_COUNTS = re.compile(r": AOTInductorModelBase\((\d+),\s*(\d+),")


def with_epilogue(code: str, epilogue: Epilogue) -> str:
    """What AOTInductor generated around the kernels, with `epilogue` at the end of a run.

    Raises:
        NotImplementedError: the code is not of the form that is known.
    """
    counts, run = _COUNTS.search(code), _RUN.search(code)
    if counts is None or run is None or code.count(_END) != 1:
        raise NotImplementedError("what AOTInductor generates has changed: nothing can run behind the graph")
    inputs, outputs, kept = int(counts[1]), int(counts[2]), epilogue.outputs
    begin = f"""{epilogue.declarations}
{run[0].replace("output_handles,", "returned_handles,")}    AtenTensorHandle output_handles[{outputs}];
    void* input_data[{inputs}];
    for (int i = 0; i < {inputs}; ++i)
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(input_handles[i], &input_data[i]));
"""
    end = f"""    {{
        std::vector<RAIIAtenTensorHandle> handles;
        void* output_data[{outputs}];
        for (int i = 0; i < {outputs}; ++i) {{
            handles.emplace_back(output_handles[i]);
            AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(output_handles[i], &output_data[i]));
        }}
{epilogue.statements}
        for (int i = 0; i < {kept}; ++i) returned_handles[i] = handles[i].release();
    }}
{_END}"""
    code = code.replace(run[0], begin).replace(_END, end)
    code = re.sub(
        r"\n *outputs_info_\[(\d+)\]\.name = [^\n]*", lambda name: name[0] if int(name[1]) < kept else "", code
    )
    return _COUNTS.sub(f": AOTInductorModelBase({inputs}, {kept},", code)


# The symbols are weak, for a library may be loaded by a program without Python.
_GIL = """
extern "C" {
__attribute__((weak)) void* PyEval_SaveThread();
__attribute__((weak)) void PyEval_RestoreThread(void*);
__attribute__((weak)) int PyGILState_Check();
}
namespace {
struct WithoutGil {
    void* thread = PyGILState_Check && PyGILState_Check() ? PyEval_SaveThread() : nullptr;
    ~WithoutGil() { if (thread) PyEval_RestoreThread(thread); }
};
}  // namespace
"""


def without_gil(code: str) -> str:
    """What AOTInductor generated around the kernels, with Python's lock released for the time of a run.

    Raises:
        NotImplementedError: the code is not of the form that is known.
    """
    run = _RUN.search(code)
    if run is None:
        raise NotImplementedError("what AOTInductor generates has changed: no place is known to release the GIL at")
    start = code.rindex("namespace torch::aot_inductor", 0, run.start())
    run_without = run[0] + "    WithoutGil without_gil;\n"
    return code[:start] + _GIL + code[start : run.start()] + run_without + code[run.end() :]


@contextlib.contextmanager
def _rewriting(epilogue: Epilogue | None, shares_gil: bool, is_lean: bool) -> Iterator[None]:
    """AOTInductor compiles with these changes within, and against `runtime.h` where that is asked for and can be."""
    from torch._inductor import codecache

    interface = (Path(codecache.__file__).parent / "codegen" / "aoti_runtime" / "interface.cpp").read_text()
    compile_before = codecache.AotCodeCompiler.__dict__["compile"]
    header_before = codecache._get_cpp_wrapper_header
    lean = False

    def compile_rewritten(cls: type, graph: Any, wrapper: str, kernels: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal lean
        source = lean_source(wrapper, interface.strip()) if is_lean else None
        lean = source is not None
        source = wrapper if source is None else source
        if epilogue is not None:
            source, kernels = with_epilogue(source, epilogue), kernels + epilogue.kernels
        if shares_gil:
            source = without_gil(source)
        return compile_before.__func__(cls, graph, source, kernels, *args, **kwargs)

    def header(device: str, aot_mode: bool = False) -> str:
        return str(RUNTIME) if lean and aot_mode else header_before(device, aot_mode=aot_mode)

    codecache.AotCodeCompiler.compile = classmethod(compile_rewritten)  # type: ignore[assignment]
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


@functools.cache
def lower_as_copy(operator: torch._ops.OpOverload) -> None:
    """Make Inductor lower `operator`, a copy, to a buffer of its own, even where a view would do."""
    from torch._inductor.lowering import lowerings, register_lowering

    def copy(x: Any) -> Any:
        copied = lowerings[torch.ops.aten.clone.default](x)
        copied.realize()
        return copied

    register_lowering(operator, type_promotion_kind=None)(copy)


def lay_out_again(graph: fx.Graph) -> None:
    """Work out again the fake tensors of a functional graph, some of whose nodes have other strides than before."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default  # rows may not follow one another any more
    values = [node.meta["val"] for node in graph.find_nodes(op="placeholder")]
    mode = next(value.fake_mode for value in values if isinstance(value, FakeTensor))
    module = graph.owning_module
    assert module is not None
    module.recompile()
    with torch.no_grad():
        FakeTensorProp(module, mode).propagate_dont_convert_inputs(*values)


def force_strides(graph: fx.Graph, node: fx.Node, strides: tuple[int, ...]) -> None:
    """Give the output `node` of a functional graph these strides."""
    from torch._inductor.inductor_prims import force_stride_order

    (output,) = graph.find_nodes(op="output")
    with graph.inserting_before(output):
        forced = graph.call_function(force_stride_order, (node, strides))
    forced.meta["val"] = node.meta["val"].new_empty_strided(node.meta["val"].shape, strides)
    output.replace_input_with(node, forced)


def load_library(path: str) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
    """Load a library that `aot_compile` made; the call that runs it."""
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(path, 1)
    run: Callable[[list[torch.Tensor]], list[torch.Tensor]] = runner.run
    return run


def load_gpu_library(path: str, device: str, kernels: str) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
    """Load a library that `aot_compile` made for a CUDA device, with its kernels in the folder `kernels`."""
    runner: Any = torch._C._aoti.AOTIModelContainerRunnerCuda(path, 1, device, kernels)
    run: Callable[[list[torch.Tensor]], list[torch.Tensor]] = runner.run
    return run


def cpp_compiler() -> str:
    """The C++ compiler that Inductor calls. Raises when there is none."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    return get_cpp_compiler()
