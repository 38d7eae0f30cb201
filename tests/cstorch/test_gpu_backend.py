"""The GPU backend: what it refuses, and its processes, which talk through gloo here, give the results of one."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import cstorch
import gpu_run
import pytest
import torch
from cstorch.backends import gpu_backend
from cstorch.errors import BackendError

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")


@pytest.fixture
def on_cpu(monkeypatch):
    """Lets the backend run where there is no GPU."""
    monkeypatch.setattr(gpu_backend, "device_of", lambda local_rank: torch.device("cpu"))


@no_gpu
def test_without_cuda_it_says_what_is_missing(monkeypatch):
    with pytest.raises(BackendError, match=r'PyTorch.*backend\("CSX"\) or cstorch\.backend\("CPU"\)'):
        cstorch.backend("GPU")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(BackendError, match=r"needs a PyTorch built with CUDA, and this one .* is not\. Install one"):
        cstorch.backend("GPU")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(BackendError, match=r"no GPU on this host.*nvidia-smi.*CUDA_VISIBLE_DEVICES is ''"):
        cstorch.backend("GPU")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(BackendError, match=r"local rank 2 has no GPU: this host has 2.*--nproc_per_node=2"):
        gpu_backend.device_of(2)
    assert gpu_backend.device_of(1) == torch.device("cuda", 1)
    assert cstorch.current_backend(raise_exception=False, raise_warning=False) is None


@pytest.mark.parametrize(
    ("options", "environment", "kind", "message"),
    [
        ({"main_process_id": "0"}, {}, TypeError, "main_process_id is '0'"),
        ({"dist_backend": None}, {}, TypeError, "dist_backend is None"),
        ({"init_method": 5}, {}, TypeError, "init_method is 5"),
        ({"sync_batchnorm": True}, {}, ValueError, "sync_batchnorm=True.*enable_distributed is False"),
        ({"main_process_id": 1}, {}, ValueError, "main_process_id=1.*enable_distributed is False"),
        (
            {"enable_distributed": True},
            {},
            BackendError,
            "RANK, WORLD_SIZE, LOCAL_RANK is not in the.*torchrun --nproc",
        ),
        ({"enable_distributed": True}, {"RANK": "0", "WORLD_SIZE": "2"}, BackendError, "and LOCAL_RANK is not in"),
        ({"enable_distributed": True, "main_process_id": 2}, "two", ValueError, "main_process_id is 2.*0 to 1"),
        ({"enable_distributed": True, "dist_backend": "pigeon"}, "two", BackendError, "'pigeon'.*has not got.*gloo"),
    ],
    ids=str,
)
def test_what_it_refuses(on_cpu, monkeypatch, options, environment, kind, message):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    if environment == "two":
        environment = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(kind, match=message):
        cstorch.backend("GPU", **options)


def test_processes_that_do_not_know_of_each_other_are_warned_of(on_cpu, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(UserWarning, match="2 processes were launched, and enable_distributed is False"):
        cstorch.backend("GPU").close()


def test_two_processes_give_the_results_of_one(on_cpu, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(gpu_run.__file__)), str(tmp_path)]
    started = [
        subprocess.Popen(command, env={**common, "RANK": r, "LOCAL_RANK": r}, stderr=subprocess.PIPE, text=True)
        for r in "01"
    ]
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    saved = cstorch.load(tmp_path / "5.mdl")
    assert saved["rank"] == 1  # the main process
    (tmp_path / "one").mkdir()
    for kind in ("CPU", "GPU"):
        with cstorch.backend(kind) as backend:
            losses, weights = gpu_run.train(backend, 8, slice(None), tmp_path / "one")
        torch.testing.assert_close(first["weights"], weights, rtol=1e-5, atol=1e-6)
        means = [(a + b) / 2 for a, b in zip(first["losses"], second["losses"], strict=True)]
        assert means == pytest.approx(losses, rel=1e-5)
    assert first["weights"] == second["weights"]
    torch.testing.assert_close(saved["model"]["0.bias"].tolist(), first["weights"]["0.bias"])
    assert first["said"] == "SyncBatchNorm layers only work with GPU modules"  # it was converted, and this is the cpu


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_gives_the_results_of_the_cpu(tmp_path):
    found = {}
    for kind in ("CPU", "GPU"):
        with cstorch.backend(kind) as backend:
            found[kind] = gpu_run.train(backend, 8, slice(None), tmp_path)
    torch.testing.assert_close(found["GPU"], found["CPU"], rtol=1e-4, atol=1e-5)
