"""Runs a script under torchrun on two hosts, which are two network namespaces of this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_NAMESPACES = ("unshare", "--user", "--map-root-user", "--net")


def why_not() -> str:
    """Why network namespaces cannot be made here; empty when they can."""
    command = [*_NAMESPACES, "ip", "link", "add", "one", "type", "veth"]
    try:
        probe = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        return str(error)
    return probe.stderr.strip() if probe.returncode != 0 else ""


def run_on_two_hosts(*script: str) -> str:
    """What the script's two processes print; skips the test where namespaces cannot be made."""
    reason = why_not()
    if reason:
        pytest.skip(f"network namespaces cannot be made here: {reason}")
    environment = {**os.environ, "CSTORCH_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [*_NAMESPACES, "sh", str(Path(__file__).with_suffix(".sh")), sys.executable, *script]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout
