"""`cstorch.save`: writes a checkpoint file whole or not at all."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from cstorch.device import CsxTensor, to_host
from cstorch.storage import atomic, background
from cstorch.storage.background import PendingSave
from cstorch.storage.progress import ByteProgress
from cstorch.storage.write import Plan
from cstorch.tracing import nest
from cstorch.tracing.context import context

logger = logging.getLogger("cstorch.save")


def save(
    obj: dict[str, Any],
    checkpoint_file: str | os.PathLike[str],
    *,
    pickle_objects: bool = False,
    blocking: bool = True,
) -> PendingSave | None:
    """Save a state dict to a file (`cerebras.pytorch.save`).

    The file is HDF5 with a dataset for each tensor, opens with `torch.load` on any machine, and `cstorch.load` reads
    it lazily and without running code. Tensors on csx are cpu tensors in it; what nobody has computed yet stays so,
    and a tensor of one value takes no space. Tensors that share memory do so again after loading; others are stored
    contiguously. Where several processes go through the program alike (the GPU backend with `enable_distributed`, CSX
    with `peers`), only the main one writes, and the others return at once. The file appears complete or not at all,
    also when the process dies; an existing file is replaced.

    Args:
        obj: The object to save, usually a dict of state dicts. Tensors, numbers, text, None, bytes, arrays and
            scalars of numpy, dicts, lists, tuples, sets, namedtuples, Namespace, dates, paths and enumerations.
        checkpoint_file: Where to.
        pickle_objects: Whether other objects are pickled, for `torch.load(weights_only=False)`, rather than refused.
        blocking: False to return once the tensors are copied, and to write the file in the background. The next save,
            the end of a run and the interpreter's exit wait for it. The copy takes memory of the size of the file.

    Returns:
        None, or with `blocking=False` a handle: `wait()`, `done()`, `error`.

    Raises:
        CheckpointError: the file cannot be written. What was there before is still there.
        CheckpointContentError: an object cannot be saved in a form that is safe to load (a TypeError). It is named.
    """
    if context.backend is not None and not context.backend.is_main_process:
        logger.info("%s is written by the main process alone", checkpoint_file)
        return None if blocking else PendingSave(os.path.abspath(checkpoint_file), lambda: None)
    plan = Plan(obj, pickle_objects)
    if not blocking:
        name = os.path.abspath(checkpoint_file)
        return background.start(name, plan, lambda: _replace(name, plan.write))
    background.wait_for_saves()
    with ByteProgress(f"saving {os.path.basename(checkpoint_file)}", plan.size) as progress:
        _replace(checkpoint_file, lambda file: plan.write(file, progress, ahead=True))
    return None


def _replace(name: str | os.PathLike[str], write: Callable[[int], None]) -> None:
    atomic.replace(name, write)
    context.last_checkpoint = os.path.abspath(name)


def on_host(obj: Any) -> Any:
    """`obj` with csx tensors as cpu tensors; a tensor that occurs twice stays one."""
    known: dict[int, Any] = {}

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, CsxTensor):
            return known.setdefault(id(leaf), to_host(leaf, "saving a tensor").detach())
        return leaf

    return nest.map_leaves(convert, obj)
