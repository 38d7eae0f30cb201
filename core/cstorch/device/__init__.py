"""The torch device "csx": its registration and its tensors.

Importing this package registers the device for the process. `torch.device("csx")`, `tensor.to("csx")` and
`module.to("csx")` then work as for any device.
"""

from cstorch.device import autocast, kernels, lazy, module_moves, recurrent_layers, uninitialized
from cstorch.device.registration import CSX
from cstorch.device.tensor import CsxTensor, ValueCell, to_host

autocast.install()
module_moves.install()
uninitialized.install()

__all__ = ["CSX", "CsxTensor", "ValueCell", "kernels", "lazy", "recurrent_layers", "to_host"]
