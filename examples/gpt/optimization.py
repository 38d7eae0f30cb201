"""The optimizer and its schedule, of cstorch.optim: the learning rate is a function of the step."""

from __future__ import annotations

from configuration import Config
from cstorch import optim
from cstorch.optim.lr_scheduler import CosineDecayLR, LinearLR, LRScheduler, SequentialLR
from torch import nn


def make_optimizer(model: nn.Module, config: Config) -> optim.AdamW:
    """AdamW: matrices decay, biases and normalizations do not."""
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95))


def make_schedule(optimizer: optim.Optimizer, config: Config) -> LRScheduler:
    """Linear warm-up, then half a cosine down to a tenth."""
    rate, warmup = config.learning_rate, config.warmup_steps
    up = LinearLR(optimizer, rate / (warmup + 1), rate, warmup)
    down = CosineDecayLR(optimizer, rate, rate / 10, max(1, config.steps - warmup))
    return SequentialLR(optimizer, [up, down], [warmup])
