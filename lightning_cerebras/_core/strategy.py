"""What makes a single-device strategy of Lightning one that traces steps and replays them on csx."""

from __future__ import annotations

import functools
import logging
import os
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from lightning_cerebras._core.accelerator import CSXAcceleratorMixin
from lightning_cerebras._core.activities import samples_of
from lightning_cerebras._core.log_folder import log_folder
from lightning_cerebras._core.own_batches import fetch, hand_over
from lightning_cerebras._core.private import is_compiled

if TYPE_CHECKING:
    from lightning_cerebras._core.automatic import AutomaticOptimization
    from lightning_cerebras._core.manual import ManualOptimization


class CSXStrategyMixin:
    """Runs a LightningModule on csx: each kind of step becomes a program.

    Args:
        compile_dir: Folder of the compile cache; the default of `cstorch.backend("CSX")` otherwise.
        artifact_dir: Folder for reports; by default `csx` in the log folder of the Trainer's logger. Where it has none
            no report is written, unless nothing is executed: then it is in `./cerebras_logs`.
        compile_only: Trace and compile the steps, run none, and show the report of each. The run ends with a
            NotExecutedError after the first training step.
        validate_only: Likewise, without compiling.
        backend: The backend that steps run on: "CSX", or the name of one that a plugin registers and that traces.
        cluster_config: A ClusterConfig; with a `mgmt_address` that a plugin knows, steps run there. `devices=N` of the
            Trainer is its `num_csx`, where it does not say more than one itself.
        profiler_activities: Activity classes, or names of those that plugins register, measured over the training
            batches. Their values are in `profiler`, and `DeviceStatsMonitor` logs the numbers among them.
        accelerator: Set by the Trainer.
        checkpoint_io: How checkpoints are written and read; CSXCheckpointIO by default.
        precision_plugin: Set by the Trainer.
    """

    strategy_name = "csx"
    _device_arguments: ClassVar[dict[str, Any]] = {"device": "csx"}  # of the class of Lightning's below
    _checkpoint_io: Any
    precision_class: type
    checkpoint_io_class: type
    wrapping_io_class: type
    closure_class: type

    def __init__(
        self,
        compile_dir: str | os.PathLike[str] | None = None,
        artifact_dir: str | os.PathLike[str] | None = None,
        backend: str = "CSX",
        cluster_config: Any = None,
        profiler_activities: list[Any] | None = None,
        compile_only: bool = False,
        validate_only: bool = False,
        accelerator: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
    ) -> None:
        import cstorch  # registers the device, which only users of csx want

        assert cstorch.__version__
        super().__init__(  # type: ignore[call-arg]
            **self._device_arguments,
            accelerator=accelerator,
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
        )
        options = {"compile_dir": compile_dir, "artifact_dir": artifact_dir, "cluster_config": cluster_config}
        self._backend_name = backend
        self._backend_options = {name: value for name, value in options.items() if value is not None}
        modes = {"compile_only": compile_only, "validate_only": validate_only}
        self._backend_options.update((name, True) for name, wanted in modes.items() if wanted)
        self._activities = profiler_activities or []
        self._batch: Any = None
        self.profiler: Any = None
        self._backend: Any = None
        self._owns_backend = False
        self._optimization: AutomaticOptimization | ManualOptimization | None = None
        self._evaluations: dict[str, Any] = {}
        self._context: Any = None
        self._outputs: Any = None

    @property
    def _cstorch(self) -> Any:
        import cstorch

        return cstorch

    # -- what the Trainer sets ---------------------------------------------------------------------------

    @property
    def precision_plugin(self) -> Any:
        """The precision plugin, a CSXPrecision."""
        return self._precision_plugin

    @precision_plugin.setter
    def precision_plugin(self, plugin: Any) -> None:
        if plugin is None:
            plugin = self.precision_class()
        if not isinstance(plugin, self.precision_class):
            raise ValueError(
                f"accelerator='csx' got the precision plugin {type(plugin).__name__}, expected CSXPrecision. "
                "Remove it from plugins= and say precision='32-true', 'bf16-mixed', '16-mixed' or 'bf16-true'."
            )
        self._precision_plugin = plugin

    @property
    def checkpoint_io(self) -> Any:
        """How checkpoints are written and read."""
        if self._checkpoint_io is None:
            self._checkpoint_io = self.checkpoint_io_class()
        elif isinstance(self._checkpoint_io, self.wrapping_io_class):
            inner = self._checkpoint_io
            if not isinstance(inner.checkpoint_io, self.checkpoint_io_class):  # type: ignore[attr-defined]
                inner.checkpoint_io = self.checkpoint_io_class()  # type: ignore[attr-defined]
        return self._checkpoint_io

    @checkpoint_io.setter
    def checkpoint_io(self, io: Any) -> None:
        self._checkpoint_io = io

    @property
    def optimizers(self) -> Any:
        """The optimizers of the module."""
        return super().optimizers  # type: ignore[misc]

    @optimizers.setter
    def optimizers(self, optimizers: list[Any]) -> None:
        from cstorch.tracing.observed_state import observe_state

        for optimizer in optimizers:  # now, since the wrapper made of it copies what it has
            observe_state(optimizer)
        super(CSXStrategyMixin, type(self)).optimizers.fset(self, optimizers)  # type: ignore[misc]

    @property
    def backend(self) -> Any:
        """The CSX backend of the run; None outside of one."""
        return self._backend

    def use_devices(self, devices: int) -> None:
        """Run on so many systems: `devices` of the Trainer.

        Raises:
            ValueError: the strategy's `cluster_config` has another number.
        """
        from cstorch.distributed import ClusterConfig

        if devices == CSXAcceleratorMixin.auto_device_count():  # what the cluster_config or torchrun says holds
            return
        config = self._backend_options.get("cluster_config") or ClusterConfig()
        if config.num_csx not in (1, devices):
            raise ValueError(
                f"Trainer(devices={devices}), and the cluster_config of its strategy says num_csx={config.num_csx}. "
                "Say one of them."
            )
        self._backend_options["cluster_config"] = replace(config, num_csx=devices)

    # -- setting up and down -----------------------------------------------------------------------------

    def setup_environment(self) -> None:
        """Make the backend, unless the program has made it.

        Raises:
            ValueError: no plugin registers a backend of that name, or it runs steps as they are; or the program has
                made one with another number of systems than `devices`.
        """
        from cstorch.utils.profiler import Profiler

        if self._backend is None:
            existing = self._cstorch.current_backend(raise_exception=False, raise_warning=False)
            if existing is not None and existing.name == self._backend_name.upper():
                self._use_existing(existing)
            else:
                self._backend = self._make_backend()
                self._owns_backend = True
            if not self.backend.is_csx:
                self._end_backend()
                raise ValueError(
                    f"CSXStrategy(backend={self._backend_name!r}) names a backend that runs steps as they are, "
                    "expected one that traces them, such as 'CSX'. For the host itself say accelerator='cpu'."
                )
        self.profiler = Profiler(self._activities)
        self.accelerator.profiler = self.profiler  # type: ignore[attr-defined]
        super().setup_environment()  # type: ignore[misc]

    def _make_backend(self) -> Any:
        try:
            return self._cstorch.backend(self._backend_name, **self._backend_options)
        except SystemExit:  # torchrun started this process, which has been a system of the run until it ended
            trainer = self.lightning_module.trainer  # type: ignore[attr-defined]
            trainer.callbacks, trainer.loggers, trainer.datamodule = [], [], None  # to them that is no exception
            raise

    def _use_existing(self, backend: Any) -> None:
        config = self._backend_options.get("cluster_config")
        there = getattr(backend.cluster_config, "num_csx", 1)
        if config is not None and config.num_csx not in (1, there):
            raise ValueError(
                f"the Trainer was asked for {config.num_csx} systems, and the backend that the program has made has "
                f"{there}. Make it with ClusterConfig(num_csx={config.num_csx}), or let the Trainer make it."
            )
        self._backend = backend

    def _end_backend(self) -> None:
        backend, self._backend = self._backend, None
        if self._owns_backend:
            backend.close()
        self._owns_backend = False

    def model_to_device(self) -> None:
        """Prepare the module for tracing."""
        self._cstorch.compile(self.model, self._backend)  # type: ignore[attr-defined]

    def setup(self, trainer: Any) -> None:
        """Set up the module and its optimizers, and take over the loop's optimisation steps."""
        from lightning_cerebras._core.automatic import AutomaticOptimization
        from lightning_cerebras._core.manual import ManualOptimization
        from lightning_cerebras._core.step_context import StepContext

        self._report_beside_logs(trainer)
        super().setup(trainer)  # type: ignore[misc]
        if type(trainer.profiler).__name__ != "PassThroughProfiler":
            self._backend.profile = lambda part: trainer.profiler.profile(f"[CSX].{part}")
        if self._backend.systems is not None and self._backend.systems.share_batch:
            logging.getLogger(type(trainer).__module__).info(
                "Each batch is divided among %d CS systems: batch sizes are those of all systems together.",
                self._backend.systems.count,
            )
        module = self.lightning_module  # type: ignore[attr-defined]
        if is_compiled(module):
            warnings.warn(
                "torch.compile has no effect with accelerator='csx', which compiles whole steps: what it wraps is "
                "traced as it is.",
                stacklevel=2,
            )
        if type(trainer.profiler).__name__ == "XLAProfiler":
            raise ValueError(
                "profiler='xla' with accelerator='csx': it is the profiler of another device. Use profiler='simple', "
                "'advanced' or 'pytorch', which show the parts of a step on csx as [CSX].trace, [CSX].execute."
            )
        self._context = context = StepContext(trainer, module)
        if trainer.state.fn == "fit":
            if module.automatic_optimization:
                self._optimization = AutomaticOptimization(self, trainer, module, context)
            else:
                run: Any = super().training_step  # type: ignore[misc]
                self._optimization = ManualOptimization(self, trainer, module, context, run)

    def _report_beside_logs(self, trainer: Any) -> None:
        """Let the backend leave its reports where the Trainer leaves its logs, unless told where."""
        if self._owns_backend and "artifact_dir" not in self._backend_options:
            folder = log_folder(trainer)
            if folder is not None:
                self._backend.artifact_dir = folder / "csx"
            elif self._backend.is_e2e_execution:  # a Trainer without logs leaves nothing behind
                self._backend.report.keeps_files = False

    def save_checkpoint(self, checkpoint: Any, filepath: Any, storage_options: Any = None) -> None:
        """Write a checkpoint, after a look whether all systems have the same state.

        Raises:
            BackendError: they do not.
        """
        if self._backend is not None:
            self._backend.check_systems()
        super().save_checkpoint(checkpoint, filepath, storage_options)  # type: ignore[misc]

    def teardown(self) -> None:
        """Bring the module back to the host and end the backend."""
        if self._optimization is not None:
            self._optimization.close()
        self._optimization = None
        self._evaluations.clear()
        if self._context is not None:
            self._context.close()
        try:
            super().teardown()  # type: ignore[misc]
        finally:
            if self._backend is not None:
                self._backend.profile = None
                self._end_backend()

    # -- activities ------------------------------------------------------------------------------------------

    def on_train_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """The batch before this one is done: its samples count."""
        self._count_batch()
        if self.profiler:
            self._batch = batch

    def on_train_end(self) -> None:
        """The last batch counts too."""
        super().on_train_end()  # type: ignore[misc]
        self._count_batch()

    def _count_batch(self) -> None:
        if self._batch is not None:
            self.profiler.add(samples_of(self._batch))
            self._batch = None

    # -- steps -------------------------------------------------------------------------------------------

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        """`optimizer.step()`: of the whole step in automatic optimisation, of a part of it in manual optimisation."""
        if self._optimization is None:  # after the run, on the host
            return super().optimizer_step(optimizer, closure, model, **kwargs)  # type: ignore[misc]
        return self._optimization.optimizer_step(optimizer, closure, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """The training step: part of a program in automatic optimisation, a program itself in manual optimisation."""
        whole = getattr(self._optimization, "training_step", None)  # of manual optimisation
        if whole is not None:
            return whole(*args, **kwargs)
        return super().training_step(*args, **kwargs)  # type: ignore[misc]

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """The validation step as a program; its outputs as cpu tensors."""
        return self._evaluate("validation_step", args, kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """The test step as a program; its outputs as cpu tensors."""
        return self._evaluate("test_step", args, kwargs)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """The predict step as a program; its outputs as cpu tensors."""
        return self._evaluate("predict_step", args, kwargs)

    def _evaluate(self, name: str, args: Any, kwargs: Any) -> Any:
        if name not in self._evaluations:
            inner = getattr(super(), name)
            keep = self._cstorch.step_closure(self._keep)

            def step(inputs: Any, args: Any, kwargs: Any) -> None:
                with self._context.tracing(inputs):
                    keep(hand_over(name, args, functools.partial(inner, **kwargs)))

            step.__name__ = name
            self._evaluations[name] = self._cstorch.trace(step)
        self._context.call(self._evaluations[name], fetch(args), kwargs)
        outputs, self._outputs = self._outputs, None
        return outputs

    def _keep(self, outputs: Any) -> None:
        self._outputs = outputs
