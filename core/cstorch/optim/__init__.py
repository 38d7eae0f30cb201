"""Optimizers and schedules of their numbers (`cerebras.pytorch.optim`)."""

from cstorch.optim import lr_scheduler, optimizer, scheduler, weight_decay_scheduler
from cstorch.optim.adafactor import Adafactor
from cstorch.optim.adam import Adam, AdamW
from cstorch.optim.configure import (
    configure_lr_scheduler,
    configure_optimizer,
    configure_optimizer_params,
    configure_scheduler,
    configure_scheduler_params,
)
from cstorch.optim.lamb import Lamb
from cstorch.optim.lion import Lion
from cstorch.optim.muon import Muon
from cstorch.optim.of_torch import ASGD, Adadelta, Adagrad, Adamax, NAdam, RAdam, RMSprop, Rprop
from cstorch.optim.optimizer import Optimizer
from cstorch.optim.param_groups import configure_param_groups
from cstorch.optim.sgd import SGD

__all__ = [
    "ASGD",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lamb",
    "Lion",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "configure_lr_scheduler",
    "configure_optimizer",
    "configure_optimizer_params",
    "configure_param_groups",
    "configure_scheduler",
    "configure_scheduler_params",
    "lr_scheduler",
    "optimizer",
    "scheduler",
    "weight_decay_scheduler",
]
