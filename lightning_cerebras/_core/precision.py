"""The precisions of a csx Trainer: "32-true", "bf16-mixed" (autocast in the step), "bf16-true" (bfloat16 weights)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

PRECISIONS = ("32-true", "bf16-mixed", "bf16-true")
_SHORT = {32: "32-true", "32": "32-true", "bf16": "bf16-mixed"}
_REASONS = {
    16: "float16 needs a loss scale that follows the gradients, which is not part of this version; bfloat16 needs none",
    64: "csx computes in 32 bits at most",
}


def check_precision(precision: Any) -> str:
    """`precision` as Lightning spells it.

    Raises:
        ValueError: csx cannot do it; the supported ones are named.
    """
    spelled = _SHORT.get(precision, precision)
    if spelled in PRECISIONS:
        return str(spelled)
    reason = next((f" ({why})" for bits, why in _REASONS.items() if str(precision).startswith(str(bits))), "")
    raise ValueError(
        f"precision={precision!r} with accelerator='csx'{reason}: expected one of {', '.join(map(repr, PRECISIONS))}."
    )


class CSXPrecisionMixin:
    """Precision on csx.

    Args:
        precision: "32-true", "bf16-mixed" or "bf16-true".

    Raises:
        ValueError: another precision.
    """

    def __init__(self, precision: Any = "32-true") -> None:
        super().__init__()
        self.precision = check_precision(precision)

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
        autocast = torch.autocast("csx", torch.bfloat16, self.precision == "bf16-mixed", cache_enabled=False)
        with self.tensor_init_context(), autocast:
            yield
