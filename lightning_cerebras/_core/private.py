"""Every name of Lightning's private surface that the binding relies on (Lightning 2.4 to 2.6), checked at bind time.

Whatever of these a Lightning release moves is named in the error that a `Trainer(accelerator="csx")` then raises.
"""

from __future__ import annotations

import types
from typing import Any

import torch

CONNECTOR = ("_choose_strategy", "_check_and_init_precision")
"""Methods of `_AcceleratorConnector` without arguments; `accelerator`, `strategy`, `_precision_flag` beside them."""

PARALLEL = ("_configure_launcher",)
"""Methods of `ParallelStrategy`; its `_layer_sync`, and the launchers of scripts and of processes, beside them."""

AUTOMATIC = (
    "_make_closure",
    "_training_step",
    "_on_before_zero_grad",
    "_optimizer_zero_grad",
    "_make_zero_grad_fn",
)
"""Methods of `_AutomaticOptimization`; `_skip_backward`, `optim_progress` and `output_result_cls` beside them."""

OPTIMIZER = ("_on_before_step", "_on_after_step")
"""What a LightningOptimizer calls around its step; `Strategy._lightning_optimizers` holds them."""

COUNTERS = (
    "fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed",
    "fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.zero_grad.total.completed",
    "fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.zero_grad.current.completed",
    "fit_loop.epoch_loop.manual_optimization.optim_step_progress.total.completed",
    "fit_loop.epoch_loop.manual_optimization.optim_step_progress.current.completed",
    "fit_loop.epoch_loop.batch_progress.total.ready",
    "fit_loop.epoch_loop.batch_progress.current.ready",
    "fit_loop.epoch_loop.batch_progress.is_last_batch",
    "fit_loop.epoch_loop._batches_that_stepped",
    "fit_loop.epoch_progress.current.completed",
)
"""What a step counts, and what `global_step`, `current_epoch`, `fit_loop.batch_idx`, `is_last_batch` are read from."""

TRACED_HOOKS = (
    "backward",
    "on_before_backward",
    "on_after_backward",
    "on_before_zero_grad",
    "optimizer_zero_grad",
    "on_before_optimizer_step",
    "configure_gradient_clipping",
)
"""Hooks of a LightningModule or a Callback that run as part of a traced step."""

MODULE_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
"""Where PyTorch keeps the hooks of a module; `_backward_hooks`, `_post_accumulate_grad_hooks` those of a tensor."""

LOOPS = ("_active_loop",)
"""The loop that runs; `_seen_batches_per_dataloader` of evaluation, `_batches_that_stepped` of `epoch_loop` beside."""

METRICS = ("callback_metrics", "logged_metrics", "progress_bar_metrics")
"""Properties of `Trainer` whose values differ from step to step."""

PRECISION = ("_after_closure",)
"""Methods of `Precision`."""


def missing(owner: type, names: tuple[str, ...]) -> list[str]:
    """Those of `names` that `owner` lacks, as `Class.name`."""
    return [f"{owner.__name__}.{name}" for name in names if not callable(getattr(owner, name, None))]


def results_of(trainer: Any) -> Any:
    """The collection that `LightningModule.log` writes to, or None."""
    return trainer._results


def metric_of(trainer: Any, fx: str, name: str, by_dataloader: bool) -> Any:
    """The metric that `log` has registered for what the hook `fx` logs, or None where it would reset it first."""
    results = trainer._results
    if trainer._logger_connector.should_reset_tensors(fx):
        return None
    index = results.dataloader_idx if by_dataloader else None
    return results.get(f"{fx}.{name}" if index is None else f"{fx}.{name}.{index}")


def add_to_metric(trainer: Any, fx: str, metric: Any, value: torch.Tensor, batch_size: int | None) -> None:
    """Do what `log` does with a value whose options it has checked before.

    `log` moves every attribute of the metric to the value's device each time, which takes longer than a short step.
    """
    results = trainer._results
    metric.forward(value, results._extract_batch_size(metric, batch_size, metric.meta))
    metric.has_reset = False
    trainer._logger_connector._current_fx = fx


def own_log(module: Any) -> Any:
    """`LightningModule.log` itself, where a class of the user may have another before it."""
    found = (vars(c)["log"] for c in type(module).__mro__ if "log" in vars(c))
    return next(log for log in found if is_of_lightning(log))


def is_of_lightning(code: Any) -> bool:
    """Whether a frame runs, or a function is, code of Lightning itself."""
    scope = code.f_globals if isinstance(code, types.FrameType) else getattr(code, "__globals__", {})
    return str(scope.get("__name__", "")).startswith(("lightning.", "pytorch_lightning."))


def loop_of(trainer: Any) -> Any:
    """The loop of automatic optimisation."""
    return trainer.fit_loop.epoch_loop.automatic_optimization


def logged_step(trainer: Any) -> tuple[str, int, bool]:
    """Where `trainer` is: the stage, the step that its loggers know it by, and whether it is one to be logged.

    They are those of `self.log`: a batch of evaluation is known by how many its loop has seen before, in all its runs.
    """
    stage = str(trainer.state.stage.value)
    if trainer.training:
        step = trainer.fit_loop.epoch_loop._batches_that_stepped
        return stage, int(step), (step + 1) % max(trainer.log_every_n_steps, 1) == 0
    loop = trainer._active_loop
    seen = getattr(loop, "_seen_batches_per_dataloader", None)
    number = loop.batch_progress.current.ready - 1 if seen is None else sum(seen.values())
    return stage, int(number), not trainer.sanity_checking


def is_compiled(module: Any) -> bool:
    """Whether the user has given a LightningModule, or a module in it, to `torch.compile`."""
    if getattr(module, "_compiler_ctx", None) is not None:
        return True
    return any(
        type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules()
    )


def is_fetcher(argument: Any) -> bool:
    """Whether the argument of a step is its `dataloader_iter`."""
    return type(argument).__name__ == "_DataFetcherWrapper"
