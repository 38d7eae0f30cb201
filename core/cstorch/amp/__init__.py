"""Mixed precision, `cerebras.pytorch.amp`: half dtypes, autocast, loss scales."""

from cstorch.amp.dtypes import (
    autocast,
    enable_mixed_precision,
    get_floating_point_dtype,
    get_floating_point_dtype_str,
    get_half_dtype,
    get_half_dtype_str,
    is_cbfloat16_tensor,
    mixed_precision,
    set_half_dtype,
    use_bfloat16,
)
from cstorch.amp.grad_scaler import GradScaler, optimizer_step

__all__ = [
    "GradScaler",
    "autocast",
    "enable_mixed_precision",
    "get_floating_point_dtype",
    "get_floating_point_dtype_str",
    "get_half_dtype",
    "get_half_dtype_str",
    "is_cbfloat16_tensor",
    "mixed_precision",
    "optimizer_step",
    "set_half_dtype",
    "use_bfloat16",
]
