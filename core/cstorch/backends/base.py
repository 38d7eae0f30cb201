"""The Backend base class: which device a program runs on and where its artifacts go."""

from __future__ import annotations

import contextlib
import enum
import functools
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from cstorch.backends import csx
from cstorch.device import CSX, lazy, native_guard
from cstorch.distributed.cluster_config import ClusterConfig
from cstorch.report.run import RunReport
from cstorch.tracing.across_systems import Systems
from cstorch.tracing.context import context
from cstorch.tracing.program import Executable, Program


class BackendType(enum.Enum):
    """The kinds of backend."""

    CSX = "CSX"
    CPU = "CPU"
    GPU = "GPU"

    @classmethod
    def from_str(cls, name: str) -> BackendType:
        """The type of that name, in any case.

        Args:
            name: "CSX", "CPU" or "GPU".

        Raises:
            ValueError: there is none of that name.
        """
        try:
            return cls[name.upper()]
        except KeyError:
            raise ValueError(f"backend_type is {name!r}, expected one of {', '.join(cls.__members__)}.") from None

    @property
    def is_csx(self) -> bool:
        """Whether it is CSX."""
        return self is BackendType.CSX

    @property
    def is_cpu(self) -> bool:
        """Whether it is CPU."""
        return self is BackendType.CPU

    @property
    def is_gpu(self) -> bool:
        """Whether it is GPU."""
        return self is BackendType.GPU


class DeviceConfig:
    """`backend.device.config`, where old programs set what are flags of `backends.csx.debug` now."""

    @property
    def lazy_initialization(self) -> bool:
        """The flag `csx.debug.lazy_initialization`; may be assigned."""
        return bool(csx.debug.lazy_initialization)

    @lazy_initialization.setter
    def lazy_initialization(self, value: bool) -> None:
        csx.debug.lazy_initialization = value

    @property
    def drop_data(self) -> bool:
        """The flag `csx.debug.drop_data`; may be assigned."""
        return bool(csx.debug.drop_data)

    @drop_data.setter
    def drop_data(self, value: bool) -> None:
        csx.debug.drop_data = value


class BackendDevice:
    """`backend.device`: a context manager in which a model is built for the device.

    New tensors and modules are on the device. On CSX they are lazy, unless
    `csx.debug.lazy_initialization` is off: what creates and initialises them is recorded
    and replayed on first need, and a model that is only compiled or validated never takes its memory. Values
    and random numbers are those of eager PyTorch under the same seed.
    """

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self.config = DeviceConfig()
        self._entered: list[contextlib.ExitStack] = []

    def __enter__(self) -> BackendDevice:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.torch_device)
            if self.torch_device.type == CSX.type and csx.debug.lazy_initialization:
                stack.enter_context(lazy.recording())
            self._entered.append(stack.pop_all())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.pop().close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.torch_device})"


class Backend:
    """Where programs run. Made by `cstorch.backend(...)`; one at a time in a process.

    A backend of another distribution subclasses this, registers itself in the hook `cstorch_register_backends`, and
    says with `backend_type` which kind it is of. CSX: tensors are on the device csx, a traced step is recorded once,
    `load` makes its program ready and what `load` returned runs at each call. CPU or GPU: steps run as they are, and
    `load` is never called. `cstorch.testing` checks either kind.

    Args:
        torch_device: The device of tensors: `cstorch.device.CSX` for a backend that runs programs.
        artifact_dir: Folder for reports and profiles of runs; default `./cerebras_logs`.
        compile_dir: Folder of the compile cache, for a backend that runs programs; default
            `/opt/cerebras/cached_compile` where that can be written, otherwise the user's cache folder.

    Attributes:
        backend_type: A BackendType; its `.name` is "CSX", "CPU" or "GPU".
        name: The name that `cstorch.backend` made it by, in capitals.
        is_csx, is_cpu, is_gpu: Which type that is.
        torch_device: The torch.device of tensors on this backend.
        device: A context manager for building models.
        modules: The modules that were given to `cstorch.compile`.
        is_tracing: Whether the body of a traced step is being recorded now.
        is_e2e_execution: Whether programs are executed; false for compile_only and validate_only.
        systems: The systems that run each program together, when they are several.
        is_main_process: Whether this process, of those that go through the program alike, writes checkpoints and
            summaries.
        programs: How many programs have been loaded.
        report: What they are made of; also in files below the artifact_dir.
        loaded: They, as long as their traced steps keep them.
        profile: Called with "trace", "compile" or "execute", makes a context manager that surrounds that part of
            the call of a traced step; None by default.
    """

    backend_type: BackendType
    cluster_config: Any = None
    systems: Systems | None = None
    is_main_process: bool = True

    def __init__(
        self,
        torch_device: torch.device,
        artifact_dir: str | os.PathLike[str] | None = None,
        compile_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.torch_device = torch_device
        self.name = self.backend_type.name
        self.device = BackendDevice(torch_device)
        self.artifact_dir = artifact_dir if artifact_dir is not None else Path.cwd() / "cerebras_logs"
        self.is_csx = self.backend_type is BackendType.CSX
        self.is_cpu = self.backend_type is BackendType.CPU
        self.is_gpu = self.backend_type is BackendType.GPU
        self.modules: list[nn.Module] = []
        self.is_tracing = False
        self.programs = 0
        self.report = RunReport(self)
        self.loaded: list[weakref.ref[Program]] = []
        self.profile: Callable[[str], contextlib.AbstractContextManager[Any]] | None = None
        self.is_e2e_execution = True
        self._compile_dir = compile_dir
        if self.is_csx:
            self.cluster_config = ClusterConfig()
            native_guard.install(self.compile_dir)

    @functools.cached_property
    def compile_dir(self) -> Path:
        """The folder of the compile cache, made when first asked for."""
        from cstorch.compiler.cache import cache_folder  # the compiler is not imported before it is used

        return cache_folder(self._compile_dir)

    @property
    def retraces(self) -> bool:
        """Whether traced steps run their Python at every call: the flag `csx.debug.retrace_every_iteration`."""
        return csx.debug.retrace_every_iteration  # type: ignore[no-any-return]

    @property
    def artifact_dir(self) -> Path:
        """The artifact folder; may be assigned."""
        return self._artifact_dir

    @artifact_dir.setter
    def artifact_dir(self, value: str | os.PathLike[str]) -> None:
        self._artifact_dir = Path(value)

    def load(self, program: Program, example: list[torch.Tensor]) -> Executable | None:
        """Make a program ready to run. Called once for each program, after the graph passes of plugins.

        Args:
            program: A traced step: `program.graph` takes the tensors of `program.state` first.
            example: Inputs with the shapes, strides and dtypes of the real ones; they must not be changed.

        Returns:
            What runs it: called with the list of inputs at each step, it changes the state among them in place and
            returns one cpu tensor for each output. None when programs are not executed.
        """
        raise NotImplementedError(f"the {self.name} backend runs steps as they are")

    def make_executable(self, program: Program, example: list[torch.Tensor]) -> Executable | None:
        """What a traced step calls for each new program: graph passes, those of plugins first, `load`, and the report.

        Raises:
            MicroBatchError: it cannot run in micro-batches of the size that `csx.performance` asks for.
            MemoryLimitError: it would take more memory than the flags of `backends.csx.debug` allow.
        """
        from cstorch.compiler.micro_batch import set_micro_batch
        from cstorch.compiler.plugin_passes import transform
        from cstorch.compiler.precision import set_precision
        from cstorch.report.limits import check_compile, check_limits

        program = set_precision(transform(program, example, self), csx.precision.optimization_level)
        program, explored = set_micro_batch(program, csx.performance.micro_batch_size, example, self)
        entry = self.report.add(program, explored)
        try:
            if entry is not None:
                check_limits(entry.report)
            executable = self.load(program, example)
            if entry is not None:
                if executable is not None:
                    entry.made = getattr(executable, "made", None)
                check_compile(program.name, entry.made)
            return executable
        finally:
            self.report.write()

    def forward_of(self, model: nn.Module) -> Callable[..., Any]:
        """What the callable that `cstorch.compile` returns for `model`, which is on the device, calls."""
        return model

    def place(self, batch: Any) -> Any:
        """A batch of the DataExecutor where steps expect it: as it is, but on a GPU."""
        return batch

    def flops_done(self) -> int | None:
        """The floating-point operations of all programs that have run; None where that is not known."""
        return None

    def check_systems(self) -> None:
        """Compare the state on all systems, where there are several; at checkpoint steps."""

    def to_cpu(self, tensor: torch.Tensor) -> torch.Tensor:
        """The contents of `tensor` as a cpu tensor of its own."""
        return tensor.detach().cpu()

    def close(self) -> None:
        """End this backend, so that another one can be made in the process."""
        self.report.close()
        self.modules.clear()
        if context.backend is self:
            context.backend = None

    def __enter__(self) -> Backend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.name} backend on {self.torch_device}>"
