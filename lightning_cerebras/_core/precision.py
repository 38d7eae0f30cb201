"""The precisions of a csx Trainer.

"32-true"; "bf16-mixed" and "16-mixed", autocast in the step, the latter with a loss scale that is part of the step;
"bf16-true", bfloat16 weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true")
_SHORT = {32: "32-true", "32": "32-true", "bf16": "bf16-mixed", 16: "16-mixed", "16": "16-mixed"}
_REASONS = {
    "16-true": "float16 weights lose small updates; 'bf16-true' has the same size",
    "64": "csx computes in 32 bits at most",
    "transformer-engine": "its kernels are those of another device",
}
_CASTS = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
SAVED_AS = "MixedPrecision"
"""The key of a checkpoint under which Lightning keeps a loss scale, on every accelerator."""


def check_precision(precision: Any) -> str:
    """`precision` as Lightning spells it.

    Raises:
        ValueError: csx cannot do it; the supported ones are named.
    """
    spelled = _SHORT.get(precision, precision)
    if spelled in PRECISIONS:
        return str(spelled)
    reason = next((f" ({why})" for name, why in _REASONS.items() if str(precision).startswith(name)), "")
    raise ValueError(
        f"precision={precision!r} with accelerator='csx'{reason}: expected one of {', '.join(map(repr, PRECISIONS))}."
    )


class CSXPrecisionMixin:
    """Precision on csx.

    Args:
        precision: "32-true", "bf16-mixed", "16-mixed" or "bf16-true".
        init_scale: The first loss scale with "16-mixed".
        growth_factor: What the loss scale is multiplied by after `growth_interval` steps without overflow.
        backoff_factor: What it is multiplied by after an overflow, when the optimizer's step is skipped.
        growth_interval: A number of steps.

    Raises:
        ValueError: another precision.
    """

    def __init__(
        self,
        precision: Any = "32-true",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        super().__init__()
        self.precision = check_precision(precision)
        self.scaler: Any = None
        if self.precision == "16-mixed":
            from cstorch.tracing.loss_scale import LossScale

            self.scaler = LossScale(init_scale, growth_factor, backoff_factor, growth_interval)

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """With "bf16-true" its weights become bfloat16."""
        return module.to(torch.bfloat16) if self.precision == "bf16-true" else module

    def convert_input(self, data: Any) -> Any:
        """With "bf16-true" floating-point tensors become bfloat16."""
        if self.precision != "bf16-true":
            return data
        from lightning_utilities.core.apply_func import apply_to_collection

        return apply_to_collection(data, torch.Tensor, lambda t: t.bfloat16() if t.is_floating_point() else t)

    @contextlib.contextmanager
    def tensor_init_context(self) -> Iterator[None]:
        """The dtype of tensors that are made within."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16 if self.precision == "bf16-true" else before)
        try:
            yield
        finally:
            torch.set_default_dtype(before)

    def module_init_context(self) -> Any:
        """The dtype of parameters that are made within."""
        return self.tensor_init_context()

    @contextlib.contextmanager
    def forward_context(self) -> Iterator[None]:
        """The surroundings of every step."""
        cast = _CASTS.get(self.precision)
        autocast = torch.autocast("csx", cast or torch.bfloat16, cast is not None, cache_enabled=False)
        with self.tensor_init_context(), autocast:
            yield

    # -- the loss scale of "16-mixed" --------------------------------------------------------------------

    def pre_backward(self, tensor: torch.Tensor, module: Any) -> torch.Tensor:
        """The loss that backward starts from."""
        scaled = tensor if self.scaler is None else self.scaler.scale(tensor)
        result: torch.Tensor = super().pre_backward(scaled, module)  # type: ignore[misc]
        return result

    def optimizer_step(self, optimizer: Any, model: Any, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """Closure, gradient hooks and clipping, update; all part of the step that is traced."""
        if self.scaler is None:
            return super().optimizer_step(optimizer, model=model, closure=closure, **kwargs)  # type: ignore[misc]
        with torch.enable_grad():
            loss = closure()
        if all(p.grad is None for group in optimizer.param_groups for p in group["params"]):
            return loss
        self.scaler.unscale_(optimizer)
        self._after_closure(model, optimizer)  # type: ignore[attr-defined]
        self.scaler.step(optimizer, **kwargs)
        self.scaler.update()
        return loss

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the loss scale where a Trainer on any accelerator looks for it."""
        if self.scaler is not None:
            checkpoint[SAVED_AS] = self.scaler.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on with the loss scale of a checkpoint, of any accelerator."""
        if self.scaler is not None and SAVED_AS in checkpoint:
            self.scaler.load_state_dict(checkpoint[SAVED_AS])
