"""Groups the parameters of a model as configuration files say: what decays, and whose learning rate is scaled."""

from __future__ import annotations

import fnmatch
from typing import Any

from torch import nn

_NORMS = (
    nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.modules.batchnorm._NormBase,
)  # fmt: skip


def configure_param_groups(model: nn.Module, optimizer_params: dict[str, Any]) -> list[dict[str, Any]]:
    """The param_groups of a model.

    Biases and the parameters of normalizations do not decay, all others do. A factor of the learning rate is an entry
    "adjust_learning_rate" of a group, which `lr_scheduler.ScalePerParamLR` reads.

    Args:
        model: Of its parameters those that require a gradient are taken.
        optimizer_params: The arguments of the optimizer. Of these are read "weight_decay" (or "weight_decay_rate"),
            default 0, and "adjust_learning_rate": factors for patterns, each a part of the parameter's name or a
            pattern of it with `*`; the first that fits counts.

    Returns:
        A dict for each weight decay and factor that there is, with "params", "weight_decay" and, where it is not 1,
        "adjust_learning_rate".
    """
    decay = optimizer_params.get("weight_decay", optimizer_params.get("weight_decay_rate", 0.0))
    factors = optimizer_params.get("adjust_learning_rate") or {}
    normalizing = {id(p) for m in model.modules() if isinstance(m, _NORMS) for p in m.parameters(recurse=False)}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            own = 0.0 if id(parameter) in normalizing or name.rpartition(".")[2].startswith("bias") else decay
            factor = next((f for pattern, f in factors.items() if fnmatch.fnmatchcase(name, f"*{pattern}*")), 1.0)
            groups.setdefault((own, factor), []).append(parameter)
    return [
        {"params": params, "weight_decay": own, **({} if factor == 1.0 else {"adjust_learning_rate": factor})}
        for (own, factor), params in groups.items()
    ]
