"""Whether a file is a checkpoint; saving and loading are `cstorch.save` and `cstorch.load`."""

from __future__ import annotations

import os
from typing import Any, NoReturn


class PyTorchH5Saver:
    """The reference's saver, of which programs ask one thing: `PyTorchH5Saver.is_valid_checkpoint(path)`.

    Raises:
        NotImplementedError: when one is made.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            "cstorch.saver.PyTorchH5Saver is not part of this implementation. Use cstorch.save and cstorch.load."
        )

    @staticmethod
    def is_valid_checkpoint(checkpoint_file: str | os.PathLike[str]) -> bool:
        """Whether a file is there and is HDF5, as checkpoints of `cstorch.save` and of the reference are.

        Args:
            checkpoint_file: Its path.
        """
        import h5py  # takes a while to import

        return os.path.isfile(checkpoint_file) and bool(h5py.is_hdf5(checkpoint_file))
