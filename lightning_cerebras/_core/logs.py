"""`self.log` in a traced step: taped while the step is traced, replayed after every step with that step's values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import cstorch
import torch

from lightning_cerebras._core.counters import Counters
from lightning_cerebras._core.private import add_to_metric, metric_of, own_log, results_of

_PASSED = (
    "prog_bar",
    "logger",
    "on_step",
    "on_epoch",
    "reduce_fx",
    "enable_graph",
    "add_dataloader_idx",
    "batch_size",
    "sync_dist",
    "sync_dist_group",
    "metric_attribute",
    "rank_zero_only",
)

_FIXED = (bool, str, type(None))
"""Types of options that are the same at each step."""


def is_plain(value: Any) -> bool:
    """Whether a logged value needs no conversion."""
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.device.type == "cpu"


@contextlib.contextmanager
def taped(trainer: Any, module: Any, counters: Counters) -> Iterator[None]:
    """Within, calls of `log` (the module's and the callbacks') become step closures of the step being traced.

    Args:
        trainer: The trainer.
        module: The LightningModule.
        counters: Is told that something was logged.
    """
    results = results_of(trainer)
    if results is None:  # predict: Lightning itself refuses to log
        yield
        return

    log = own_log(module)

    def tape(fx: str, name: str, value: Any, **options: Any) -> None:
        if options.get("enable_graph"):
            raise ValueError(
                f"self.log({name!r}, ..., enable_graph=True) cannot be used with accelerator='csx': the graph "
                "lives inside the compiled step. Log without enable_graph."
            )
        passed = {key: options[key] for key in _PASSED if key in options}
        if passed.get("logger"):
            passed["logger"] = None  # the default means True, and does not warn of a missing logger again
        counters.has_logged = True
        fixed = {key: option for key, option in passed.items() if isinstance(option, _FIXED)}

        varying = {key: option for key, option in passed.items() if key not in fixed}
        by_dataloader = bool(fixed.get("add_dataloader_idx", True))
        checked: Any = None  # the metric that `log` added this value to last

        @cstorch.step_closure
        def replay(value: Any, options: dict[str, Any]) -> None:
            nonlocal checked
            metric = metric_of(trainer, fx, name, by_dataloader)
            if metric is not None and metric is checked:
                add_to_metric(trainer, fx, metric, value, options.get("batch_size"))
                return
            before, module._current_fx_name = module._current_fx_name, fx
            try:
                log(module, name, value, **fixed, **options)
            finally:
                module._current_fx_name = before
            if is_plain(value) and options.keys() <= {"batch_size"}:
                checked = metric_of(trainer, fx, name, by_dataloader)

        replay(value, varying)

    results.log = tape
    try:
        yield
    finally:
        del results.log
