"""`cerebras_pytorch`, the name of `cerebras.pytorch` up to release 2.2: the very same modules, with a warning."""

import warnings

import cstorch  # noqa: F401
from cstorch.alias import install

warnings.warn(
    "import cerebras_pytorch is of an older release. Write import cerebras.pytorch.", FutureWarning, stacklevel=2
)
install(__name__)
