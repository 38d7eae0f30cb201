"""`devices=N` gives what `accelerator="cpu"` does on the same global batches, and csx_parallel what DDP does."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import cstorch
import lightning as L
import pytest
import torch
from cstorch.distributed import ClusterConfig
from cstorch.errors import BackendError
from lightning.pytorch.callbacks import ModelCheckpoint
from modules import Linear, assert_equal_fits, fit
from two_hosts import run_on_two_hosts, why_not

from lightning_cerebras import CSXParallelStrategy, CSXStrategy

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


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
    ids=["number", "text", "beside a config", "in a config"],
)
def test_devices_are_systems(options, systems):
    strategy = strategy_of(**options)
    assert strategy._backend_options["cluster_config"].num_csx == systems
    assert strategy.world_size == 1


def test_two_numbers_of_systems_are_refused():
    with pytest.raises(ValueError, match=r"devices=2.*num_csx=4"):
        strategy_of(devices=2, strategy=CSXStrategy(cluster_config=ClusterConfig(num_csx=4)))
    with cstorch.backend("CSX"), pytest.raises(ValueError, match=r"asked for 2 systems, and the backend .* has 1"):
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


# -- a process for each system ---------------------------------------------------------------------------------


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


SCRIPT = str(Path(__file__).with_name("parallel_run.py"))


def run_together(folder, runs):
    """Run `parallel_run.py` in several processes at once, each in a way and with variables of its own."""
    (folder / "csx").mkdir()
    (folder / "ddp").mkdir()
    common = {**os.environ, "CSTORCH_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(folder), way], env={**common, **own}, stderr=subprocess.PIPE, text=True
        )
        for way, own in runs
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()


def seen_in(folder, way):
    """What both processes of a run have seen."""
    return [json.loads((folder / f"{way}-{rank}.json").read_text()) for rank in range(2)]


def test_a_process_for_each_system_equals_ddp_on_the_cpu(tmp_path, free_port):
    """On two hosts, with num_nodes=2, where network namespaces can be made; on one otherwise."""
    if not why_not():
        (tmp_path / "csx").mkdir()
        (tmp_path / "ddp").mkdir()
        run_on_two_hosts(SCRIPT, str(tmp_path), "torchrun")
    else:
        run_together(tmp_path, [("torchrun", own) for own in torchrun_variables(free_port)])
    seen = seen_in(tmp_path, "torchrun")
    assert seen[0]["csx"]["state"] == seen[1]["csx"]["state"]
    for found in seen:
        for way in ("", " resumed"):
            csx, ddp = found["csx" + way], found["ddp" + way]
            assert csx.pop("strategy") == "CSXParallelStrategy"
            assert ddp.pop("strategy") == "DDPStrategy"
            for part in ("rows", "state"):
                torch.testing.assert_close(csx.pop(part), ddp.pop(part), rtol=1e-5, atol=1e-5)
            assert csx == ddp
        assert found["csx"]["sampler"] == "DistributedSampler"
        different_weights, different_steps = found["said"]
        assert "process 1 has another state than process 0, in tensors of shape (2, 3)" in different_weights
        assert "process 0 'update'" in different_steps
        assert "process 1 'step'" in different_steps
    assert "another process of the run is gone" in seen[0]["alone"]
    assert "The last checkpoint: " in seen[0]["alone"]
    assert not set(seen[0]["csx"]["samples"]) & set(seen[1]["csx"]["samples"])


def torchrun_variables(port):
    """What torchrun tells two processes, of rank 0 and 1."""
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{**common, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]


def test_a_process_that_is_a_system_ends_without_a_word_to_callbacks(tmp_path, free_port):
    run_together(tmp_path, [("systems", own) for own in torchrun_variables(free_port)])
    first, second = seen_in(tmp_path, "systems")
    assert first == {"callback": ["teardown"], "datamodule": ["teardown"], "step": 4}
    assert second == {"callback": [], "datamodule": [], "step": 0}
    assert not (tmp_path / "exception").exists()


@pytest.mark.parametrize("wanted", [True, False])
def test_the_distributed_sampler_is_put_in_where_it_is_wanted(wanted):
    run = L.Trainer(accelerator="csx", strategy="csx_parallel", devices=2, use_distributed_sampler=wanted, **QUIET)
    assert run._data_connector._requires_distributed_sampler(Linear().train_dataloader()) == wanted


def test_a_plain_script_starts_its_other_processes(tmp_path):
    (tmp_path / "forked").mkdir()
    run_together(tmp_path, [("script", {}), ("fork", {})])
    first, second = seen_in(tmp_path, "script")
    assert first["csx"]["strategy"] == "CSXParallelStrategy"
    assert first["csx"]["world"] == second["csx"]["world"] == 2
    assert first["csx"]["state"] == second["csx"]["state"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CSXParallelStrategy(start_method="spawn"), "start_method='spawn'.*'popen' or 'fork'"),
        (
            lambda: strategy_of(strategy=CSXParallelStrategy(cluster_config=ClusterConfig(num_csx=2)), devices=2),
            "num_csx=2.*every process drives one system",
        ),
        (
            lambda: L.Trainer(accelerator="csx", strategy="csx_parallel", sync_batchnorm=True, **QUIET).fit(Linear()),
            "sync_batchnorm=True.*devices=N",
        ),
    ],
    ids=["start method", "config of several", "sync_batchnorm"],
)
def test_what_csx_parallel_refuses(make, message, monkeypatch, free_port):
    monkeypatch.setenv("MASTER_PORT", str(free_port))
    try:
        with pytest.raises(ValueError, match=message):
            make()
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def test_peers_need_a_process_group():
    with pytest.raises(BackendError, match=r"peers=True.*there is no process group.*torchrun"):
        cstorch.backend("CSX", peers=True)
