"""Times the steps of a Trainer with logging and progress bar: `accelerator="csx"` beside `accelerator="cpu"`.

    python tests/benchmarks/lightning.py [workload ...]

The peers take turns, a whole `Trainer.fit` each, round after round, in one process; the table shows the median of
steps per second after the first steps. `host` is csx with an executable that returns at once: what Lightning's loop,
its loggers and the step's bookkeeping take by themselves, as a share of the time of a csx step.
"""

from __future__ import annotations

import contextlib
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from typing import Any

import torch
import torch.nn.functional as F

here = sys.path.pop(0)  # where this file hides the package whose name it has
import lightning as L  # noqa: E402

sys.path.insert(0, here)
from workloads import WORKLOADS, Workload  # noqa: E402

ROUNDS = 5
WARM = 20
CHOSEN = ("tiny", "mlp", "gpt-s")
STEPS = {"tiny": 300, "mlp": 100, "gpt-s": 20, "cnn": 20, "gpt-m": 5}


class Module(L.LightningModule):
    """Trains a workload and logs its loss in every way."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.net = workload.model()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


class Clock(L.Callback):
    """Measures from the end of the first steps on, from where programs may be replaced by what they returned last."""

    def __init__(self, hollow: bool) -> None:
        self.hollow = hollow
        self.start = self.seconds = 0.0

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == WARM - 2 and self.hollow:
            for step in trainer.strategy._optimization._steps.values():
                for bound in [b for several in step._programs.values() for b in several]:
                    bound.executable = Hollow(bound.executable)
        if batch_idx == WARM - 1:
            self.start = time.perf_counter()

    def on_train_end(self, trainer: L.Trainer, module: Any) -> None:
        self.seconds = time.perf_counter() - self.start


class Hollow:
    """An executable that runs once and then returns what it returned."""

    def __init__(self, executable: Any) -> None:
        self.executable = executable
        self.outputs: Any = None

    def __call__(self, inputs: Any) -> Any:
        if self.outputs is None:
            self.outputs = self.executable(inputs)
        return self.outputs


def fit(workload: Workload, accelerator: str, hollow: bool = False) -> float:
    """Milliseconds of a step."""
    torch.manual_seed(0)
    steps = WARM + STEPS[workload.name]
    batch = workload.batch()
    clock = Clock(hollow)
    with (
        tempfile.TemporaryDirectory() as folder,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        trainer = L.Trainer(
            accelerator=accelerator,
            devices=1,
            max_epochs=1,
            logger=L.pytorch.loggers.CSVLogger(folder),
            callbacks=[clock, L.pytorch.callbacks.TQDMProgressBar()],
            enable_checkpointing=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(workload), torch.utils.data.DataLoader([batch] * steps, batch_size=None))
    return clock.seconds / STEPS[workload.name] * 1e3


def main() -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    names = sys.argv[1:] or CHOSEN
    print(f"torch {torch.__version__}, Lightning {L.__version__}, {torch.get_num_threads()} threads; {ROUNDS} rounds")
    print(f"{'':8}{'cpu steps/s':>14}{'csx steps/s':>14}{'csx/cpu':>10}{'host':>10}")
    for workload in [w for w in WORKLOADS if w.name in names]:
        times: dict[str, list[float]] = {"cpu": [], "csx": [], "host": []}
        for _ in range(ROUNDS):
            times["cpu"].append(fit(workload, "cpu"))
            times["csx"].append(fit(workload, "csx"))
            times["host"].append(fit(workload, "csx", hollow=True))
        t = {name: statistics.median(found) for name, found in times.items()}
        print(
            f"{workload.name:8}{1e3 / t['cpu']:14.1f}{1e3 / t['csx']:14.1f}{t['cpu'] / t['csx']:10.2f}"
            f"{t['host'] / t['csx']:10.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
