"""`devices=N`: one process of Lightning, N systems, and the results of `accelerator="cpu"` on the same global batches."""

import json
import os
import subprocess
import sys
from pathlib import Path

import cstorch
import lightning as L
import pytest
import torch
from cstorch.distributed import ClusterConfig
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from modules import Module, assert_equal_fits, fit, loader

from lightning_cerebras import CSXStrategy


def strategy_of(**options):
    return L.Trainer(accelerator="csx", logger=False, enable_checkpointing=False, **options).strategy


@pytest.mark.parametrize(
    ("options", "systems"),
    [
        ({"devices": 3}, 3),
        ({"devices": "2"}, 2),
        ({"devices": 2, "strategy": CSXStrategy(cluster_config=ClusterConfig(num_workers_per_csx=2))}, 2),
        ({"strategy": CSXStrategy(cluster_config=ClusterConfig(num_csx=4))}, 4),
    ],
    ids=str,
)
def test_devices_are_systems(options, systems):
    strategy = strategy_of(**options)
    assert strategy._backend_options["cluster_config"].num_csx == systems
    assert strategy.world_size == 1


def test_two_numbers_of_systems_are_refused():
    with pytest.raises(ValueError, match=r"devices=2.*num_csx=4"):
        strategy_of(devices=2, strategy=CSXStrategy(cluster_config=ClusterConfig(num_csx=4)))
    with cstorch.backend("CSX"), pytest.raises(ValueError, match="asked for 2 systems, and the backend .* has 1"):
        strategy_of(devices=2).setup_environment()


def test_a_fit_on_two_systems_equals_the_cpu(tmp_path, caplog):
    runs = {}
    for accelerator in ("cpu", "csx"):
        root = tmp_path / accelerator
        files = ModelCheckpoint(root, every_n_train_steps=2, save_top_k=-1, filename="{step}")
        options = {"task": "mlp", "gradient_clip_val": 0.05, "accumulate_grad_batches": 2}
        if accelerator == "csx":
            options["devices"] = 2
        first = fit(accelerator, root, callbacks=[files], max_epochs=1, **options)
        resumed = fit(accelerator, root, callbacks=[], ckpt_path=root / "step=2.ckpt", **options)
        runs[accelerator] = first, resumed, sorted(p.name for p in root.glob("*.ckpt"))
    for cpu, csx in zip(runs["cpu"][:2], runs["csx"][:2], strict=True):
        assert_equal_fits(cpu, csx)
    assert runs["csx"][2] == runs["cpu"][2]
    assert "Each batch is divided among 2 CS systems" in caplog.text
