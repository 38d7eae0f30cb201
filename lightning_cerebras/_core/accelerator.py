"""The accelerator "csx": what `Trainer(accelerator="csx", devices=...)` accepts."""

from __future__ import annotations

import os
from typing import Any

from lightning_cerebras._core.activities import numbers_of


class CSXAcceleratorMixin:
    """Makes Lightning know the csx device."""

    strategy_classes: tuple[type, ...]
    misconfiguration: type[Exception]
    profiler: Any = None

    @staticmethod
    def name() -> str:
        """The name for `Trainer(accelerator=...)`."""
        return "csx"

    @staticmethod
    def parse_devices(devices: Any) -> int:
        """The number of systems, from an int or its text.

        Raises:
            ValueError: it is neither, or below 1.
        """
        if isinstance(devices, str) and devices.strip().isdigit():
            devices = int(devices)
        if devices == -1:  # Lightning's other word for "auto"
            return CSXAcceleratorMixin.auto_device_count()
        if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
            raise ValueError(
                f"devices={devices!r} with accelerator='csx': expected the number of CS systems as an int of at least "
                "1, or 'auto'."
            )
        return devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[Any]:
        """A device for each process that csx_parallel runs on this host; one process drives all systems otherwise."""
        import cstorch
        import torch

        assert cstorch.__version__
        return [torch.device("csx", 0)] * int(devices)

    @staticmethod
    def get_device() -> str:
        """The type of the device."""
        return "csx"

    @staticmethod
    def auto_device_count() -> int:
        """One system, or one for each process that torchrun has started on this host."""
        from torch import distributed

        launched = distributed.is_available() and distributed.is_torchelastic_launched()
        return int(os.environ["LOCAL_WORLD_SIZE"]) if launched else 1

    @staticmethod
    def is_available() -> bool:
        """True: the embedded appliance is part of the package."""
        return True

    def setup_device(self, device: Any) -> None:
        """Nothing to do before the strategy's own setup."""

    def setup(self, trainer: Any) -> None:
        """The last net under the choice of the strategy.

        Raises:
            MisconfigurationException: the trainer would run this accelerator with another strategy.
        """
        if not isinstance(trainer.strategy, self.strategy_classes):
            raise self.misconfiguration(
                f"accelerator='csx' was about to run with strategy {type(trainer.strategy).__name__}, which would "
                "train on the host without the compiled step. Leave strategy='auto', or say strategy='csx'."
            )

    def teardown(self) -> None:
        """Nothing to do after the strategy's own teardown."""

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """Numbers of the run so far.

        `csx.programs`: how many programs its steps have become; a number that grows means steps that do not settle.
        `csx.<activity>`, `csx.<activity>.<entry>`: the numbers of the strategy's profiler activities.
        """
        import cstorch

        backend = cstorch.current_backend(raise_exception=False, raise_warning=False)
        if backend is None or not backend.is_csx:
            return {}
        return {"csx.programs": float(backend.programs), **numbers_of(self.profiler)}
