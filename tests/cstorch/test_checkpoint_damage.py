"""Killed saves, full disks, flipped bits, cut files: an old or a new file each time, and never a wrong tensor."""

import contextlib
import itertools
import os
import random
import resource
import signal
import time

import cstorch
import pytest
import torch
from cstorch.errors import CheckpointError
from cstorch.storage.index import LOCATOR

STATES = [
    {"n": n, "w": torch.full((200, 1000), float(n)), "v": [torch.tensor(n)] * 20, "o": torch.rand(300 * n + 1)}
    for n in range(5)
]


def start_saver(path):
    """A process that saves for ever; forked, as starting one anew takes seconds. It computes nothing with torch."""
    process = os.fork()
    if process == 0:
        try:
            for n in itertools.count():
                cstorch.save(STATES[n % 5], path)
        finally:
            os._exit(1)
    return process


@pytest.mark.parametrize("times", [25, pytest.param(100, marks=pytest.mark.big)])
def test_a_killed_save_leaves_a_complete_file(tmp_path, times):
    path = tmp_path / "a.ckpt"
    cstorch.save(STATES[0], path)
    rng = random.Random(0)
    for _ in range(times):
        process = start_saver(path)
        time.sleep(rng.uniform(0, 0.06))
        os.kill(process, signal.SIGKILL)
        assert os.waitpid(process, 0)[1] == signal.SIGKILL
        found = cstorch.load(path, "cpu")
        assert (found["w"] == found["n"]).all()
        assert all(v == found["n"] for v in found["v"])
        assert torch.equal(found["o"], STATES[found["n"]]["o"])
        cstorch.storage.verify(path)
        cstorch.save(STATES[0], path)
        assert os.listdir(tmp_path) == ["a.ckpt"]


def test_ctrl_c_leaves_the_old_file(tmp_path):
    cstorch.save({"a": 1}, tmp_path / "a.ckpt")
    state = {"b": torch.ones(1000, 1000)}

    def interrupt(*_):
        raise KeyboardInterrupt

    from cstorch.storage import atomic

    with pytest.raises(KeyboardInterrupt):
        atomic.replace(tmp_path / "a.ckpt", interrupt)
    assert cstorch.load(tmp_path / "a.ckpt") == {"a": 1}
    assert os.listdir(tmp_path) == ["a.ckpt"]
    cstorch.save(state, tmp_path / "a.ckpt")


def test_a_full_disk_leaves_the_old_file(tmp_path):
    cstorch.save({"a": 1}, tmp_path / "a.ckpt")
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        with pytest.raises(CheckpointError, match=r"a\.ckpt cannot be written: File too large"):
            cstorch.save({"a": torch.ones(100_000)}, tmp_path / "a.ckpt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, old)
    assert cstorch.load(tmp_path / "a.ckpt") == {"a": 1}
    assert os.listdir(tmp_path) == ["a.ckpt"]


def test_a_link_and_the_permissions_of_the_file_stay(tmp_path):
    cstorch.save({"a": 1}, tmp_path / "a.ckpt")
    os.chmod(tmp_path / "a.ckpt", 0o640)
    os.symlink("a.ckpt", tmp_path / "last.ckpt")
    cstorch.save({"a": 2}, tmp_path / "last.ckpt")
    assert os.path.islink(tmp_path / "last.ckpt")
    assert cstorch.load(tmp_path / "a.ckpt") == {"a": 2}
    assert os.stat(tmp_path / "a.ckpt").st_mode & 0o777 == 0o640


def example(path):
    torch.manual_seed(0)
    state = {
        "w": torch.randn(40, 50),
        "v": [torch.arange(5), torch.zeros(3)],
        "lr": 0.1,
        "name": "x" * 50,
        "big": torch.randn(300, 300),
    }
    cstorch.save(state, path)
    return state


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, (dict, list)):
        pairs = [(a[k], b[k]) for k in a] if isinstance(a, dict) else zip(a, b)
        return len(a) == len(b) and all(equal(x, y) for x, y in pairs)
    return a == b


def test_flipped_bits_are_found_or_harmless(tmp_path):
    state = example(tmp_path / "a.ckpt")
    whole = (tmp_path / "a.ckpt").read_bytes()
    rng = random.Random(0)
    anywhere = [rng.randrange(len(whole)) for _ in range(120)]
    in_the_head = [rng.randrange(LOCATOR + 150) for _ in range(30)]
    in_metadata = [rng.randrange(512, 8192) for _ in range(25)] + [
        rng.randrange(len(whole) - 4000, len(whole)) for _ in range(25)
    ]
    for at in anywhere + in_the_head + in_metadata:
        flipped = bytearray(whole)
        flipped[at] ^= 1 << rng.randrange(8)
        (tmp_path / "b.ckpt").write_bytes(flipped)
        for location in (None, "cpu"):
            with contextlib.suppress(CheckpointError):
                assert equal(state, cstorch.load(tmp_path / "b.ckpt", location)), at
        with pytest.raises(CheckpointError, match=r"b\.ckpt"):
            cstorch.storage.verify(tmp_path / "b.ckpt")


def test_cut_files_are_found(tmp_path):
    example(tmp_path / "a.ckpt")
    whole = (tmp_path / "a.ckpt").read_bytes()
    rng = random.Random(0)
    for size in [rng.randrange(len(whole)) for _ in range(46)] + [0, 3, 512, 600]:
        (tmp_path / "b.ckpt").write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"b\.ckpt"):
            cstorch.load(tmp_path / "b.ckpt")
    (tmp_path / "b.ckpt").write_bytes(whole[:-100])
    with pytest.raises(
        CheckpointError, match=f"it is truncated: it has {len(whole) - 100} bytes instead of {len(whole)}"
    ):
        cstorch.load(tmp_path / "b.ckpt")


def test_a_damaged_tensor_is_named_when_it_is_read(tmp_path):
    state = example(tmp_path / "a.ckpt")
    whole = bytearray((tmp_path / "a.ckpt").read_bytes())
    at = whole.index(state["big"].numpy().tobytes()[:64])
    whole[at + 1000] ^= 4
    (tmp_path / "a.ckpt").write_bytes(whole)
    found = cstorch.load(tmp_path / "a.ckpt")
    assert torch.equal(found["w"], state["w"])
    for read in (
        lambda: found["big"],
        lambda: cstorch.load(tmp_path / "a.ckpt", "cpu"),
        lambda: cstorch.storage.verify(tmp_path / "a.ckpt"),
    ):
        with pytest.raises(CheckpointError, match="the tensor 'big' was damaged"):
            read()


def test_checks_can_be_left_out(tmp_path):
    state = example(tmp_path / "a.ckpt")
    whole = bytearray((tmp_path / "a.ckpt").read_bytes())
    whole[whole.index(state["big"].numpy().tobytes()[:64])] ^= 1
    (tmp_path / "a.ckpt").write_bytes(whole)
    found = cstorch.load(tmp_path / "a.ckpt", check=False)["big"]
    assert (found != state["big"]).sum() == 1


def test_tensors_outlive_the_file_they_came_from(tmp_path):
    state = example(tmp_path / "a.ckpt")
    lazy, kept = cstorch.load(tmp_path / "a.ckpt"), cstorch.load(tmp_path / "a.ckpt", "cache")
    cstorch.save({"big": torch.zeros(300, 300)}, tmp_path / "a.ckpt")
    assert torch.equal(lazy["big"], state["big"])
    os.unlink(tmp_path / "a.ckpt")
    assert torch.equal(lazy["big"], state["big"])
    assert torch.equal(kept["big"], state["big"])


def test_a_file_cut_while_it_is_open_is_an_error_and_not_a_crash(tmp_path):
    example(tmp_path / "a.ckpt")
    found = cstorch.load(tmp_path / "a.ckpt")
    os.truncate(tmp_path / "a.ckpt", 5000)
    with pytest.raises(CheckpointError, match="truncated"):
        found["big"]
