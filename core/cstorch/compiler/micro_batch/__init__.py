"""`csx.performance.micro_batch_size`: forward and backward run over parts of the batch, one after another."""

from cstorch.compiler.micro_batch.choose import set_micro_batch

__all__ = ["set_micro_batch"]
