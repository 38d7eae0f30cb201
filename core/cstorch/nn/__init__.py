"""What programs use of `cerebras.pytorch.nn`."""

from torch.nn import SmoothL1Loss

from cstorch.absent import absent
from cstorch.nn import functional

SelectiveGrad = absent(
    "cstorch.nn.SelectiveGrad",
    "Mask the gradients that are to be kept out with parameter.register_hook(lambda gradient: gradient * mask).",
)

__all__ = ["SelectiveGrad", "SmoothL1Loss", "functional"]
