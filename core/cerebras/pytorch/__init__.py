"""`cerebras.pytorch` is cstorch under the reference's name: every module below it is the very same object."""

import cstorch  # noqa: F401
from cstorch.alias import install

install(__name__)
