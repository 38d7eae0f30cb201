"""`cstorch.save` and `cstorch.load`: checkpoint files (`cerebras.pytorch.save`, `cerebras.pytorch.load`).

To read how a file is made, follow `save.py`, `write.py` and what that names; how it is read, `load.py` and `opened.py`.
"""

from cstorch.storage import constants, serializers
from cstorch.storage.background import PendingSave, wait_for_saves
from cstorch.storage.load import load
from cstorch.storage.save import save
from cstorch.storage.verify import verify

__all__ = ["PendingSave", "constants", "load", "save", "serializers", "verify", "wait_for_saves"]
