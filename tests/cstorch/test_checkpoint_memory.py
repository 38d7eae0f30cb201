"""Saves and loads that take no memory of the tensors' size: initialisers, unread tensors, models loaded lazily."""

import errno
import os
import threading
from pathlib import Path

import cstorch
import pytest
import torch
from cstorch.errors import CheckpointError
from torch import nn

MIB = 1 << 20


def memory(key):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def extra_peak(act):
    """Bytes of memory that `act` takes for a while."""
    act()  # what it loads and keeps for good
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    act()
    return memory("VmHWM") - before


INITIALISERS = {
    "normal": lambda t: nn.init.normal_(t, 0.5, 2.0),
    "uniform": lambda t: nn.init.uniform_(t, -3.0, 1.0),
    "kaiming": lambda t: nn.init.kaiming_uniform_(t, a=5**0.5),
    "truncated": lambda t: nn.init.trunc_normal_(t, 0.0, 0.02),
    "scaled": lambda t: t.normal_().mul_(0.5),
}


@pytest.mark.parametrize("name", INITIALISERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_initialisers_are_saved_as_eager_pytorch_draws_them(csx, tmp_path, name, dtype):
    sizes = [(1, 1 << 20), (7, 300_007), (1, (1 << 20) + 8 * 1024 + 5), (5, 3)]

    def build(device):
        torch.manual_seed(5)
        with torch.no_grad(), device:
            made = [nn.Parameter(torch.empty(size, dtype=dtype)) for size in sizes]
            for parameter in made:
                INITIALISERS[name](parameter)
        return made

    want = build(torch.device("cpu"))
    lazy = build(csx.device)
    assert all(t.is_pending for t in lazy)
    before = torch.get_rng_state()
    cstorch.save({"a": lazy}, tmp_path / "a.ckpt")
    cstorch.save({"a": lazy}, tmp_path / "b.ckpt", blocking=False).wait()
    assert torch.equal(before, torch.get_rng_state())
    assert all(t.is_pending for t in lazy)
    for file in ("a.ckpt", "b.ckpt"):
        cstorch.storage.verify(tmp_path / file)
        for found, expected in zip(cstorch.load(tmp_path / file, "cpu")["a"], want, strict=True):
            assert torch.equal(found, expected)


def test_a_large_initialiser_is_never_there_whole(csx, tmp_path):
    with csx.device:
        state = {"w": torch.empty(64 * MIB // 4).normal_()}
    assert extra_peak(lambda: cstorch.save(state, tmp_path / "a.ckpt")) < 16 * MIB


@pytest.fixture
def state():
    base = torch.randn(3000, 1000)
    return {"w": base, "tied": base, "half": base[:100], "zeros": torch.zeros(1).expand(9999, 99), "b": torch.ones(3)}


@pytest.mark.parametrize("way", ["within", "through"])
@pytest.mark.parametrize("blocking", [True, False])
def test_unread_tensors_go_from_file_to_file(tmp_path, monkeypatch, state, way, blocking):
    if way == "through":

        def cannot(*_):
            raise OSError(errno.EXDEV, "other file system")

        monkeypatch.setattr(os, "copy_file_range", cannot)
    cstorch.save({**state, "large": torch.randn(16 * MIB)}, tmp_path / "a.ckpt")
    found = cstorch.load(tmp_path / "a.ckpt")

    def again():
        handle = cstorch.save({"deep": [found]}, tmp_path / "b.ckpt", blocking=blocking)
        if handle is not None:
            handle.wait()

    assert extra_peak(again) < 16 * MIB
    cstorch.storage.verify(tmp_path / "b.ckpt")
    for read in (
        cstorch.load(tmp_path / "b.ckpt", "cache")["deep"][0],
        torch.load(tmp_path / "b.ckpt", weights_only=True)["deep"][0],
    ):
        assert all(torch.equal(read[name], value) for name, value in state.items())
        assert read["tied"].data_ptr() == read["w"].data_ptr() == read["half"].data_ptr()


def test_damage_in_an_unread_tensor_is_found_behind_its_copy(tmp_path, state):
    cstorch.save(state, tmp_path / "a.ckpt")
    whole = bytearray((tmp_path / "a.ckpt").read_bytes())
    whole[whole.index(state["w"].numpy().tobytes()[:64]) + 500_000] ^= 1
    (tmp_path / "a.ckpt").write_bytes(whole)
    cstorch.save(cstorch.load(tmp_path / "a.ckpt"), tmp_path / "b.ckpt")
    with pytest.raises(CheckpointError, match=r"the tensor 'w' and 'half' was damaged"):
        cstorch.load(tmp_path / "b.ckpt")["tied"]
    found = cstorch.load(tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match=r"the tensor 'w' and 'half' was damaged"):
        cstorch.save({"half": found.pop("half"), "rest": dict(found)}, tmp_path / "b.ckpt")


def test_what_was_written_to_cached_tensors_is_saved(tmp_path, state):
    cstorch.save(state, tmp_path / "a.ckpt")
    found = cstorch.load(tmp_path / "a.ckpt", "cache")
    found["w"].zero_()
    found["b"].mul_(2)
    found["zeros"][3] = 7
    cstorch.save(found, tmp_path / "b.ckpt")
    again = cstorch.load(tmp_path / "b.ckpt", "cpu")
    assert again["half"].abs().sum() == 0
    assert again["b"].tolist() == [2, 2, 2]
    assert again["zeros"].sum() == 7 * 99


@pytest.mark.parametrize("location", [None, "cache"])
def test_a_lazy_load_into_a_csx_module_holds_one_copy(csx, tmp_path, location):
    count, size = 24, 1000
    torch.manual_seed(3)
    state = {f"{i}.weight": torch.randn(size, size) for i in range(count)}
    want = {name: float(value.sum()) for name, value in state.items()}
    cstorch.save(state, tmp_path / "a.ckpt")
    del state
    with csx.device:
        model = nn.Sequential(*[nn.Linear(size, size, bias=False) for _ in range(count)])
    before, peak, done = memory("RssAnon"), [0], threading.Event()

    def watch():
        while not done.wait(0.001):
            peak[0] = max(peak[0], memory("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    model.load_state_dict(cstorch.load(tmp_path / "a.ckpt", location))
    done.set()
    watcher.join()
    assert peak[0] - before < 1.2 * count * size * size * 4
    assert {name: float(value.cpu().sum()) for name, value in model.state_dict().items()} == want


@pytest.mark.parametrize("pace", ["the thread is first", "the writer is first", "both", "one core"])
def test_checksums_are_right_whoever_computes_them(tmp_path, monkeypatch, pace):
    from cstorch.storage import checksums

    if pace == "one core":
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    elif pace == "the writer is first":
        monkeypatch.setattr(checksums.AheadChecksums, "_run", lambda *_: None)
    elif pace == "the thread is first":

        def late(self):
            self._thread.start()
            self._thread.join()
            return self

        monkeypatch.setattr(checksums.AheadChecksums, "__enter__", late)
    state = {f"t{i}": torch.randn(MIB) for i in range(16)}
    state |= {"transposed": torch.randn(500, 600).t(), "small": torch.ones(3), "view": state["t3"][100:]}
    cstorch.save(state, tmp_path / "a.ckpt")
    cstorch.storage.verify(tmp_path / "a.ckpt")
    found = cstorch.load(tmp_path / "a.ckpt", "cpu")
    assert all(torch.equal(found[name], value) for name, value in state.items())


def test_an_error_in_the_checksum_thread_fails_the_save(tmp_path, monkeypatch):
    from cstorch.storage import checksums

    def fails(_):
        raise MemoryError("no more")

    cstorch.save({"a": 1}, tmp_path / "a.ckpt")
    monkeypatch.setattr(checksums, "digest", fails)
    monkeypatch.setattr(checksums.AheadChecksums, "leaves", lambda self, number: self._thread.join())
    with pytest.raises(MemoryError, match="no more"):
        cstorch.save({"a": torch.randn(16 * MIB)}, tmp_path / "a.ckpt")
    assert cstorch.load(tmp_path / "a.ckpt") == {"a": 1}
