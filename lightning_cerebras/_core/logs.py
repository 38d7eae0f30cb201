"""`self.log` in a traced step: taped while the step is traced, replayed after every step with that step's values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import cstorch

from lightning_cerebras._core.counters import Counters
from lightning_cerebras._core.private import results_of

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

        @cstorch.step_closure
        def replay(value: Any, options: dict[str, Any]) -> None:
            before, module._current_fx_name = module._current_fx_name, fx
            try:
                module.log(name, value, **fixed, **options)
            finally:
                module._current_fx_name = before

        replay(value, {key: option for key, option in passed.items() if key not in fixed})

    results.log = tape
    try:
        yield
    finally:
        del results.log
