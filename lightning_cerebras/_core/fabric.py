"""`Fabric(accelerator="csx")`: says what to use instead."""

from __future__ import annotations

from typing import Any


class NoFabric:
    """What Fabric finds under the name "csx".

    Raises:
        NotImplementedError: always; the message names the two ways that trace whole steps.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "Fabric(accelerator='csx') is not there: in a Fabric loop nothing says where a step begins and ends, so "
            "there would be nothing to trace. Use Trainer(accelerator='csx'), or keep your own loop with cstorch: "
            "cstorch.backend('CSX'), cstorch.compile(model), and the step decorated with @cstorch.trace."
        )

    @staticmethod
    def is_available() -> bool:
        """False, so that nothing chooses it by itself."""
        return False


def register(registry: Any) -> None:
    """Make a Fabric namespace answer to "csx".

    Args:
        registry: Its `ACCELERATOR_REGISTRY`.
    """
    if "csx" not in registry:
        registry.register("csx", NoFabric, description="refused, with the way to go", override=False)
