"""Schedules of the weight decay (`cerebras.pytorch.optim.weight_decay_scheduler`)."""

from __future__ import annotations

from cstorch.optim import scheduler as _all
from cstorch.optim.schedule import Scheduler


class WeightDecayScheduler(Scheduler):
    """Base of the schedules of `group["weight_decay"]`."""

    param_group_key = "weight_decay"


class ConstantWD(_all.ConstantScheduler, WeightDecayScheduler):
    """`ConstantScheduler` of the weight decay."""


class PolynomialWD(_all.PolynomialScheduler, WeightDecayScheduler):
    """`PolynomialScheduler` of the weight decay."""


class LinearWD(_all.LinearScheduler, WeightDecayScheduler):
    """`LinearScheduler` of the weight decay."""


class ExponentialWD(_all.ExponentialScheduler, WeightDecayScheduler):
    """`ExponentialScheduler` of the weight decay."""


class InverseExponentialTimeDecayWD(_all.InverseExponentialTimeDecayScheduler, WeightDecayScheduler):
    """`InverseExponentialTimeDecayScheduler` of the weight decay."""


class InverseSquareRootDecayWD(_all.InverseSquareRootDecayScheduler, WeightDecayScheduler):
    """`InverseSquareRootDecayScheduler` of the weight decay."""


class CosineDecayWD(_all.CosineDecayScheduler, WeightDecayScheduler):
    """`CosineDecayScheduler` of the weight decay."""


class PiecewiseConstantWD(_all.PiecewiseConstantScheduler, WeightDecayScheduler):
    """`PiecewiseConstantScheduler` of the weight decay."""


class MultiStepWD(_all.MultiStepScheduler, WeightDecayScheduler):
    """`MultiStepScheduler` of the weight decay."""


class StepWD(_all.StepScheduler, WeightDecayScheduler):
    """`StepScheduler` of the weight decay."""


class CosineAnnealingWD(_all.CosineAnnealingScheduler, WeightDecayScheduler):
    """`CosineAnnealingScheduler` of the weight decay."""


class CosineAnnealingWarmRestartsWD(_all.CosineAnnealingWarmRestartsScheduler, WeightDecayScheduler):
    """`CosineAnnealingWarmRestartsScheduler` of the weight decay."""


class LambdaWD(_all.LambdaScheduler, WeightDecayScheduler):
    """`LambdaScheduler` of the weight decay."""


class MultiplicativeWD(_all.MultiplicativeScheduler, WeightDecayScheduler):
    """`MultiplicativeScheduler` of the weight decay."""


class CyclicWD(_all.CyclicScheduler, WeightDecayScheduler):
    """`CyclicScheduler` of the weight decay."""


class OneCycleWD(_all.OneCycleScheduler, WeightDecayScheduler):
    """`OneCycleScheduler` of the weight decay."""


class SequentialWD(_all.SequentialScheduler, WeightDecayScheduler):
    """`SequentialScheduler` of the weight decay."""


class ChainedWD(_all.ChainedScheduler, WeightDecayScheduler):
    """`ChainedScheduler` of the weight decay."""


class ScalePerParamWD(_all.ScalePerParamScheduler, WeightDecayScheduler):
    """`ScalePerParamScheduler` of the weight decay."""
