"""`cerebras.pytorch.saver`, where programs of release 2.3 ask whether a file is a checkpoint."""

from cstorch.saver.pt_h5_saver import PyTorchH5Saver

__all__ = ["PyTorchH5Saver"]
