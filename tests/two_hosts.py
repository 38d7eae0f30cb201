"""Runs a script under torchrun on two hosts, which are two network namespaces of this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_NAMESPACES = ("unshare", "--user", "--map-root-user", "--net")


def run_on_two_hosts(*script: str) -> str:
    """What the script's two processes print; skips the test where namespaces cannot be made."""
    try:
        probe = subprocess.run(
            [*_NAMESPACES, "ip", "link", "add", "one", "type", "veth"], capture_output=True, text=True
        )
    except FileNotFoundError as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")
    if probe.returncode != 0:
        pytest.skip(f"network namespaces cannot be made here: {probe.stderr.strip()}")
    environment = {**os.environ, "CSTORCH_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [*_NAMESPACES, "sh", str(Path(__file__).with_suffix(".sh")), sys.executable, *script]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout
