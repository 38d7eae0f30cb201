"""The states of this process's random number generators, in a form that checkpoints hold."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def seed_generators(seed: int) -> None:
    """Seed PyTorch, `random` and numpy with numbers of their own, derived from `seed`."""
    source = random.Random(seed)
    torch.manual_seed(source.getrandbits(63))
    random.seed(source.getrandbits(63))
    np.random.seed(source.getrandbits(32))


def generator_states() -> dict[str, Any]:
    """The states of the global generators of PyTorch (cpu), `random` and numpy."""
    _, words, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=False)
    twister = legacy["state"]
    return {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(words),
        "python_gauss": gauss,
        "numpy": torch.from_numpy(np.append(twister["key"], twister["pos"]).astype(np.int64)),
        "numpy_gauss": float(legacy["gauss"]) if legacy["has_gauss"] else None,
    }


def set_generator_states(states: dict[str, Any]) -> None:
    """Put back what `generator_states` gave."""
    torch.set_rng_state(torch.as_tensor(states["torch"]).clone())
    random.setstate((3, tuple(torch.as_tensor(states["python"]).tolist()), states["python_gauss"]))
    *key, position = torch.as_tensor(states["numpy"]).tolist()
    gauss = states["numpy_gauss"]
    np.random.set_state(("MT19937", np.array(key, np.uint32), position, int(gauss is not None), gauss or 0.0))


def same_states(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether generators in these states draw the same numbers."""
    tensors = all(torch.equal(torch.as_tensor(one[k]), torch.as_tensor(other[k])) for k in ("torch", "python", "numpy"))
    return tensors and all(one[key] == other[key] for key in ("python_gauss", "numpy_gauss"))


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Within, numbers may be drawn; afterwards the generators are as they were."""
    before = generator_states()
    try:
        yield
    finally:
        set_generator_states(before)
