"""Places that take no file, or no more of it, and saves that are interrupted: what was there stays, and alone."""

import contextlib
import errno
import itertools
import os
import random
import shutil
import signal
import subprocess
import time

import cstorch
import pytest
import torch
from cstorch.errors import CheckpointError


@pytest.fixture
def mounted():
    """Mounts a file system at a folder for the test; skips where that is not allowed."""
    with contextlib.ExitStack() as mounts:

        def mount(*arguments):
            *_, folder = arguments
            if shutil.which("mount") is None:
                pytest.skip("there is no mount here")
            done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
            mounts.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
            return folder

        yield mount


@pytest.mark.parametrize("reserves", [True, False], ids=["reserved", "not reserved"])
def test_a_full_disk_leaves_the_old_file(tmp_path, mounted, monkeypatch, reserves):
    disk = mounted("-t", "tmpfs", "-o", "size=2m", "tmpfs", tmp_path)
    if not reserves:  # file systems that cannot: the disk is full in the middle of the writing

        def cannot(*_):
            raise OSError(errno.EOPNOTSUPP, "not supported")

        monkeypatch.setattr(os, "posix_fallocate", cannot)
    cstorch.save({"a": 1}, disk / "a.ckpt")
    for blocking in (True, False):
        with pytest.raises(CheckpointError, match=r"a\.ckpt cannot be written: No space left on device.*has room"):
            handle = cstorch.save({"a": torch.ones(1 << 20)}, disk / "a.ckpt", blocking=blocking)
            handle.wait()
        assert cstorch.load(disk / "a.ckpt") == {"a": 1}
        assert os.listdir(disk) == ["a.ckpt"]
    cstorch.save({"a": torch.ones(1000)}, disk / "a.ckpt")
    assert cstorch.load(disk / "a.ckpt")["a"].sum() == 1000


def test_a_read_only_folder_leaves_the_old_file(tmp_path, mounted):
    cstorch.save({"a": 1}, tmp_path / "a.ckpt")
    folder = mounted("--bind", "-o", "ro", tmp_path, tmp_path)
    with pytest.raises(CheckpointError, match=r"a\.ckpt cannot be written: Read-only file system"):
        cstorch.save({"a": 2}, folder / "a.ckpt")
    assert cstorch.load(folder / "a.ckpt") == {"a": 1}
    assert os.listdir(folder) == ["a.ckpt"]


def test_a_folder_of_somebody_else_leaves_the_old_file(tmp_path):
    cstorch.save({"a": 1}, tmp_path / "a.ckpt")
    os.chmod(tmp_path, 0o555)
    process = os.fork()  # root may write everywhere, nobody may not
    if process == 0:
        status = 1
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            cstorch.save({"a": 2}, tmp_path / "a.ckpt")
        except CheckpointError as error:
            status = 0 if "cannot be written: Permission denied" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    os.chmod(tmp_path, 0o755)
    assert cstorch.load(tmp_path / "a.ckpt") == {"a": 1}
    assert os.listdir(tmp_path) == ["a.ckpt"]


def test_ctrl_c_at_any_moment_leaves_a_complete_file(tmp_path):
    path = tmp_path / "a.ckpt"
    states = [{"n": n, "w": torch.full((200, 1000), float(n)), "o": [torch.tensor(n)] * 50} for n in range(5)]
    cstorch.save(states[0], path)
    rng = random.Random(0)
    for _ in range(15):
        process = os.fork()
        if process == 0:
            status = 1
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                for n in itertools.count():
                    cstorch.save(states[n % 5], path)
            except KeyboardInterrupt:
                status = 0
            finally:
                os._exit(status)
        time.sleep(0.01 + rng.uniform(0, 0.05))
        while os.waitpid(process, os.WNOHANG) == (0, 0):
            os.kill(process, signal.SIGINT)
            time.sleep(0.02)
        found = cstorch.load(path, "cpu")
        assert (found["w"] == found["n"]).all()
        cstorch.storage.verify(path)
        cstorch.save(states[0], path)
        assert os.listdir(tmp_path) == ["a.ckpt"]
