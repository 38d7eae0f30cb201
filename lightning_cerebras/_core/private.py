"""Every name of Lightning's private surface that the binding relies on (Lightning 2.4 to 2.6), checked at bind time.

Whatever of these a Lightning release moves is named in the error that a `Trainer(accelerator="csx")` then raises.
"""

from __future__ import annotations

from typing import Any

CONNECTOR = ("_choose_strategy", "_check_and_init_precision")
"""Methods of `_AcceleratorConnector` without arguments; `accelerator`, `strategy`, `_precision_flag` beside them."""

AUTOMATIC = (
    "_make_closure",
    "_training_step",
    "_on_before_zero_grad",
    "_optimizer_zero_grad",
    "_make_zero_grad_fn",
)
"""Methods of `_AutomaticOptimization`; `_skip_backward`, `optim_progress` and `output_result_cls` beside them."""

PRECISION = ("_after_closure",)
"""Methods of `Precision`."""


def missing(owner: type, names: tuple[str, ...]) -> list[str]:
    """Those of `names` that `owner` lacks, as `Class.name`."""
    return [f"{owner.__name__}.{name}" for name in names if not callable(getattr(owner, name, None))]


def results_of(trainer: Any) -> Any:
    """The collection that `LightningModule.log` writes to, or None."""
    return trainer._results


def loop_of(trainer: Any) -> Any:
    """The loop of automatic optimisation."""
    return trainer.fit_loop.epoch_loop.automatic_optimization
