"""Systems that others start, with torchrun or `cstorch system`, meet the controller and give the results of one."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from cstorch.distributed import ClusterConfig
from systems_run import losses
from two_hosts import run_on_two_hosts

RUN = str(Path(__file__).with_name("systems_run.py"))
COMMAND = "from cstorch.command_line import main; main()"


def started(*arguments):
    environment = {**os.environ, "CSTORCH_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_torchrun_makes_ranks_above_zero_systems():
    run = started("-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}", RUN)
    out, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    assert out.splitlines() == [str(losses(ClusterConfig()))]  # of rank 0 alone


def test_torchrun_on_two_hosts():
    assert run_on_two_hosts(RUN).splitlines()[-1] == str(losses(ClusterConfig()))


def test_a_system_joins_at_an_address_when_it_knows_the_secret(tmp_path):
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for file, letter in ((right, "r"), (wrong, "w")):
        file.write_text(letter * 32)
        file.chmod(0o600)
    address = f"127.0.0.1:{free_port()}"
    controller = started(RUN, address, str(right))
    system = started("-c", COMMAND, "system", address, "--credentials", str(right))
    out, errors = controller.communicate(timeout=120)
    assert controller.returncode == 0, errors
    assert out.strip() == str(losses(ClusterConfig()))
    system.communicate(timeout=60)
    assert system.returncode == 0

    controller = started(RUN, address, str(right))
    system = started("-c", COMMAND, "system", address, "--credentials", str(wrong))
    try:
        out, errors = system.communicate(timeout=120)
        assert system.returncode != 0
        assert "secret" in errors, errors
    finally:
        controller.kill()
        controller.communicate()
