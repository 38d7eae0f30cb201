"""Makes one Lightning namespace know the csx accelerator: registration, and the choice of strategy and precision."""

from __future__ import annotations

from typing import Any

from lightning_cerebras._core import private


def bind(
    connector: Any,
    accelerators: Any,
    strategies: Any,
    accelerator_class: type,
    strategy_class: type,
    parallel_class: type,
    precision_class: type,
    automatic_class: type,
    misconfiguration: type[Exception],
) -> None:
    """Register the classes and wrap two methods of the connector. Repeating it is harmless.

    Args:
        connector: The class `_AcceleratorConnector`.
        accelerators: `AcceleratorRegistry`.
        strategies: `StrategyRegistry`.
        accelerator_class: CSXAccelerator of the namespace.
        strategy_class: CSXStrategy of the namespace.
        parallel_class: CSXParallelStrategy of the namespace.
        precision_class: CSXPrecision of the namespace.
        automatic_class: `_AutomaticOptimization`.
        misconfiguration: `MisconfigurationException`.
    """
    if "csx" not in accelerators:
        accelerators.register("csx", accelerator_class, description="CS systems: whole steps, compiled")
    if "csx" not in strategies:
        strategies.register("csx", strategy_class, description="one traced program for each kind of step")
        strategies.register("csx_parallel", parallel_class, description="one process for each system")
    if getattr(connector, "_csx_bound", False):
        return
    moved = (
        private.missing(connector, private.CONNECTOR)
        + private.missing(parallel_class.__bases__[-1], private.PARALLEL)
        + private.missing(automatic_class, private.AUTOMATIC)
        + private.missing(precision_class, private.PRECISION)
    )
    choose, precision = (getattr(connector, name, None) for name in private.CONNECTOR)

    def is_csx(self: Any) -> bool:
        if not isinstance(self.accelerator, accelerator_class):
            return False
        if moved:
            raise misconfiguration(
                "accelerator='csx' is not tested with this version of Lightning, which moved "
                f"{', '.join(moved)}. Install lightning>=2.4,<2.7."
            )
        return True

    def choose_strategy(self: Any) -> Any:
        if not is_csx(self):
            return choose(self)  # type: ignore[misc]
        return parallel_class() if _processes(self.cluster_environment) > 1 else strategy_class()

    def check_and_init_precision(self: Any) -> Any:
        ours = isinstance(self.strategy, (strategy_class, parallel_class))
        if is_csx(self) != ours:
            fix = "strategy='csx', 'csx_parallel' or 'auto'" if is_csx(self) else "accelerator='csx'"
            raise misconfiguration(
                f"accelerator {type(self.accelerator).__name__} and strategy {type(self.strategy).__name__} do not "
                f"go together. Use {fix}."
            )
        if not ours:
            return precision(self)  # type: ignore[misc]
        if self._num_nodes_flag > 1 and isinstance(self.strategy, strategy_class):
            raise misconfiguration(
                f"num_nodes={self._num_nodes_flag} with accelerator='csx': one process drives all systems, and nobody "
                "has started others. Start the script with torchrun (or srun) on each host, with "
                "strategy='csx_parallel'; or say devices=N for N systems without num_nodes."
            )
        if self._layer_sync is not None and type(self._layer_sync).__name__ != "TorchSyncBatchNorm":
            raise misconfiguration(
                f"accelerator='csx' got the plugin {type(self._layer_sync).__name__}, which changes layers for several "
                "processes. Leave it out: with strategy='csx' every layer sees the whole batch of all systems."
            )
        self.strategy.use_devices(self._devices_flag)
        if self._precision_plugin_flag is not None:
            return self._precision_plugin_flag
        return precision_class(self._precision_flag)

    if choose is not None and precision is not None:
        connector._choose_strategy = choose_strategy
        connector._check_and_init_precision = check_and_init_precision
    connector._csx_bound = True


def _processes(environment: Any) -> int:
    """How many processes were started together; 1 where a cluster environment was given and nobody started any."""
    try:
        return int(environment.world_size())
    except KeyError:  # of the variable that srun would have set
        return 1
