"""Names of `cerebras.pytorch.sparse` that programs ask for; sparse weights are not part of this implementation."""

from cstorch.absent import absent
from cstorch.sparse import configure
from cstorch.sparse.configure import ADVICE

SparsityAlgorithm = absent("cstorch.sparse.SparsityAlgorithm", ADVICE)
Group = absent("cstorch.sparse.Group", ADVICE)
map_sparsity_algorithm = absent("cstorch.sparse.map_sparsity_algorithm", ADVICE)

__all__ = ["Group", "SparsityAlgorithm", "configure", "map_sparsity_algorithm"]
