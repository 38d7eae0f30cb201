"""Operators with which a program, run by several systems on parts of one batch, makes one value of theirs.

They stand in traced graphs and say what is meant. The compiler turns them into collectives, several gradients in one;
run as they are they do what they would if all systems had the same value.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_library = torch.library.Library("cstorch", "FRAGMENT")
_library.define("mean_of_systems(Tensor x, int systems) -> Tensor")
_library.define("early_mean_of_systems(Tensor x, int systems) -> Tensor")
_library.define("sum_of_systems(Tensor x, int systems) -> Tensor")
_library.define("any_of_systems(Tensor x, int systems) -> Tensor")
_library.define("gather_systems(Tensor x, int dim, int systems) -> Tensor")
_library.impl("mean_of_systems", lambda x, systems: x.clone(), "CompositeExplicitAutograd")
_library.impl("early_mean_of_systems", lambda x, systems: x.clone(), "CompositeExplicitAutograd")
_library.impl("sum_of_systems", lambda x, systems: x * systems, "CompositeExplicitAutograd")
_library.impl("any_of_systems", lambda x, systems: x.clone(), "CompositeExplicitAutograd")
_library.impl("gather_systems", lambda x, dim, systems: torch.cat([x] * systems, dim), "CompositeExplicitAutograd")

mean_of_systems = torch.ops.cstorch.mean_of_systems.default
early_mean_of_systems = torch.ops.cstorch.early_mean_of_systems.default
"""A mean that is sent by itself as soon as its operand is there, since what it is for comes before the gradients."""
sum_of_systems = torch.ops.cstorch.sum_of_systems.default
any_of_systems = torch.ops.cstorch.any_of_systems.default
gather_systems = torch.ops.cstorch.gather_systems.default

MEANS = frozenset({mean_of_systems, early_mean_of_systems})

COMBINE = frozenset({*MEANS, sum_of_systems, any_of_systems, gather_systems})
"""Operators whose result is the same on all systems."""


@dataclass(frozen=True)
class Systems:
    """The systems that run one program together.

    Attributes:
        count: How many.
        share_batch: Whether a batch is one batch of all, to be divided and its outputs combined; otherwise every
            system is called with a batch of its own and keeps its outputs.
    """

    count: int
    share_batch: bool
