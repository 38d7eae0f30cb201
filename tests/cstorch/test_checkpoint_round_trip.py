"""Random state dicts come back equal from cstorch.load, from plain torch.load and from h5py alone."""

import argparse
import collections
import datetime
import enum
import pathlib
import runpy
import shutil
import subprocess
import zipfile
from pathlib import Path

import cstorch
import h5py
import hypothesis
import numpy as np
import pytest
import torch
from cstorch.storage.dtypes import DTYPES
from hypothesis import strategies as st
from torch import nn

Point = collections.namedtuple("Point", "x y")


class Color(enum.Enum):
    RED = 1


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    made = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8)
    if dtype is torch.bool:
        made = made % 2
    made = made.view(dtype).view(shape)
    how = draw(st.sampled_from(["plain", "transposed", "sliced", "expanded"]))
    if how == "transposed" and made.dim() >= 2:
        return made.transpose(0, -1)
    if how == "sliced" and made.dim() and made.shape[0] > 1:
        return made[1:]
    if how == "expanded" and made.numel():
        return made.flatten()[:1].expand(3, 2)
    return made


PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(min_size=1)  # no bytes at all are pickled as a call that weights_only refuses, by torch.save too
    | st.complex_numbers(allow_nan=False)
)
STATES = st.dictionaries(
    st.text(),
    st.recursive(
        PLAIN | tensors(),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
            | st.tuples(inner, inner)
        ),
    ),
    max_size=6,
)


def same(a, b):
    assert isinstance(b, type(a)) or isinstance(a, type(b)), (type(a), type(b))
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if a.numel():
            bits = [t.contiguous().flatten().view(torch.uint8) for t in (a, b)]
            assert torch.equal(*bits)
    elif isinstance(a, np.ndarray):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    else:
        assert a == b
        assert repr(a) == repr(b)


def flat(state, path=()):
    if isinstance(state, torch.Tensor):
        yield ".".join(map(str, path)), state
    elif isinstance(state, (dict, list, tuple)):
        for key, value in state.items() if isinstance(state, dict) else enumerate(state):
            yield from flat(value, (*path, key))


def assert_h5py_reads(found, value):
    assert found.shape == value.shape
    if value.dtype in (torch.bfloat16, torch.float8_e5m2):
        np.testing.assert_array_equal(found, value.float().numpy().astype(found.dtype))
    else:
        assert found.tobytes() == value.contiguous().flatten().view(torch.uint8).numpy().tobytes()


@hypothesis.settings(
    max_examples=60, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(STATES)
def test_random_states_come_back_equal_in_every_way(tmp_path, state):
    path = tmp_path / "a.ckpt"
    cstorch.save(state, path)
    for location in (None, "cache", "cpu"):
        same(state, cstorch.load(path, location))
    for options in ({}, {"mmap": True}):
        same(state, torch.load(path, weights_only=True, **options))
    with h5py.File(path) as file:
        names = [name for name in file if not name.startswith("__cstorch__.")]
        wanted = list(flat(state))
        assert len(names) == len(wanted)
        for name, value in wanted:
            if sum(n == name for n, _ in wanted) == 1 and not set(name) & set("/%\0~") and name not in ("", "."):
                assert_h5py_reads(file[name][()], value)
    cstorch.storage.verify(path)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_h5py_reads_every_dtype(tmp_path, dtype):
    bits = torch.arange(1, 1 + 6 * dtype.itemsize, dtype=torch.uint8)
    value = bits.view(dtype).view(2, 3) if dtype is not torch.bool else torch.tensor([[True, False]])
    cstorch.save({"a": {"b": value}}, tmp_path / "a.ckpt")
    with h5py.File(tmp_path / "a.ckpt") as file:
        found = file["a.b"][()]
    if dtype.is_floating_point and found.dtype != np.uint8:
        np.testing.assert_array_equal(found, value.to(torch.float64).numpy().astype(found.dtype))
    else:
        assert found.tobytes() == value.view(torch.uint8).numpy().tobytes()
    assert found.shape == value.shape


def test_everything_with_a_safe_form_comes_back(tmp_path):
    state = {
        "sets": [{1, "a"}, frozenset({2})],
        "namedtuple": Point(1, torch.ones(2)),
        "namespace": argparse.Namespace(lr=0.1, name="x"),
        "arrays": [np.arange(6.0).reshape(2, 3), np.array(["a", "bc"]), np.array(3)],
        "scalars": [np.float32(0.1), np.int64(3), np.bool_(True), np.datetime64("2026-01-02")],
        "torch": [torch.Size([1, 2]), torch.float32, torch.device("cpu"), torch.get_rng_state()],
        "dates": [datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.timezone.utc), datetime.timedelta(1, 2, 3)],
        "path": pathlib.Path("a/b"),
        "enum": Color.RED,
        "ordered": collections.OrderedDict(b=1, a=2),
        "counter": collections.Counter("aab"),
        "deque": collections.deque([1, 2]),
        "numbers": [1 << 5000, float("inf"), -0.0, 3 + 2j, range(3), bytearray(b"x")],
        "keys": {1: "a", (1, "b"): 2, None: 3, "$x": 4, 2.5: {"/": torch.ones(1), ".": 1}},
    }
    cstorch.save(state, tmp_path / "a.ckpt")
    for location in (None, "cpu"):
        found = cstorch.load(tmp_path / "a.ckpt", location)
        same(state, found)
        assert type(found["enum"]) is Color
        assert type(found["ordered"]) is collections.OrderedDict
    same(state, torch.load(tmp_path / "a.ckpt", weights_only=False))


def test_nan_comes_back(tmp_path):
    cstorch.save({"a": float("nan"), "b": torch.tensor([float("nan")])}, tmp_path / "a.ckpt")
    found = cstorch.load(tmp_path / "a.ckpt")
    assert found["a"] != found["a"]
    assert found["b"].isnan().all()


def test_tied_tensors_and_views_are_stored_once_and_tied_again(tmp_path):
    base = torch.arange(1 << 18, dtype=torch.float32)
    state = {
        "w": base,
        "head": base,
        "half": base[: 1 << 17],
        "bits": base.view(torch.int32),
        "t": base[:4].view(2, 2).t(),
    }
    cstorch.save(state, tmp_path / "a.ckpt")
    assert (tmp_path / "a.ckpt").stat().st_size < base.nbytes + 16384
    with h5py.File(tmp_path / "a.ckpt") as file:
        for name, value in state.items():
            np.testing.assert_array_equal(file[name][()], value.numpy())
    for found in (
        cstorch.load(tmp_path / "a.ckpt", "cpu"),
        cstorch.load(tmp_path / "a.ckpt", "cache"),
        torch.load(tmp_path / "a.ckpt", weights_only=True),
    ):
        same(state, dict(found))
        found["w"][1] = 7.0
        assert found["head"][1] == 7.0
        assert found["half"][1] == 7.0
        assert found["t"][1, 0] == 7.0
        assert found["bits"][1] == torch.tensor(7.0).view(torch.int32)


def test_a_view_is_stored_without_the_rest_of_its_storage(tmp_path):
    cstorch.save({"row": torch.randn(1000, 1000)[3]}, tmp_path / "a.ckpt")
    assert (tmp_path / "a.ckpt").stat().st_size < 20_000


def test_parameters_and_requires_grad_come_back(tmp_path):
    state = {
        "p": nn.Parameter(torch.ones(2)),
        "frozen": nn.Parameter(torch.ones(2), False),
        "leaf": torch.ones(1).requires_grad_(),
    }
    cstorch.save(state, tmp_path / "a.ckpt")
    for found in (cstorch.load(tmp_path / "a.ckpt"), torch.load(tmp_path / "a.ckpt", weights_only=True)):
        assert type(found["p"]) is nn.Parameter
        assert (found["p"].requires_grad, found["frozen"].requires_grad, found["leaf"].requires_grad) == (
            True,
            False,
            True,
        )


@pytest.mark.parametrize("location", [None, "cache", "cpu"])
def test_a_module_and_its_optimizer_go_on_from_a_checkpoint(tmp_path, location):
    def build():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300), nn.Linear(300, 1))
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    def train(model, optimizer, seed):
        torch.manual_seed(seed)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 300)).square().mean().backward()
            optimizer.step()

    model, optimizer = build()
    train(model, optimizer, 1)
    cstorch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.mdl")
    train(model, optimizer, 2)
    again, its_optimizer = build()
    found = cstorch.load(tmp_path / "a.mdl", location)
    assert found["model"]._metadata == model.state_dict()._metadata
    again.load_state_dict(found["model"])
    its_optimizer.load_state_dict(found["optimizer"])
    train(again, its_optimizer, 2)
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_zipfile_lists_it(tmp_path):
    state = {"a": torch.ones(3), "b": torch.arange(1 << 19)}
    cstorch.save(state, tmp_path / "a.ckpt")
    with zipfile.ZipFile(tmp_path / "a.ckpt") as file:
        sizes = {info.filename: info.file_size for info in file.infolist()}
        assert (sizes["archive/data/0"], sizes["archive/data/1"]) == (12, 4 << 20)
        assert {"archive/data.pkl", "archive/version", "archive/byteorder"} <= set(sizes)
        file.read("archive/data.pkl")


@pytest.mark.skipif(shutil.which("h5dump") is None, reason="needs h5dump, of the HDF5 tools")
def test_h5dump_prints_it(tmp_path):
    state = {"a": {"b": torch.arange(6.0).view(2, 3)}, "flag": torch.tensor([True, False]), "n": torch.tensor(-7)}
    state["half"] = torch.tensor([0.5, -2.0], dtype=torch.bfloat16)
    state["zeros"] = torch.zeros(1).expand(2, 2)
    state["z"] = torch.tensor(1 + 2j)
    state["large"] = torch.arange(1 << 19)
    cstorch.save(state, tmp_path / "a.ckpt")

    def h5dump(*arguments):
        return subprocess.run(
            ["h5dump", *arguments, tmp_path / "a.ckpt"], check=True, capture_output=True, text=True
        ).stdout

    listed = h5dump("-n")
    for name in ("a.b", "flag", "n", "half", "zeros", "z", "large", "__cstorch__.tree"):
        assert f"dataset    /{name}\n" in listed
    whole = " ".join(h5dump("-y", "-w", "200", "-d", "/a.b", "-d", "/flag", "-d", "/n", "-d", "/half").split())
    for text in ("0, 1, 2, 3, 4, 5", "TRUE, FALSE", "-7", "0.5, -2"):
        assert text in whole
    assert " ".join(h5dump("-y", "-w", "200", "-d", "/zeros").split()).count("0, 0, 0, 0") == 1
    assert "H5T_STD_I64LE" in h5dump("-H")


def test_a_reader_that_lacks_cstorch_reads_it(tmp_path, capsys):
    script = runpy.run_path(str(Path(__file__).parents[1] / "conformance" / "checkpoint_readers.py"))
    script["write"](tmp_path, 40, 3, script["known"]())
    script["read"](tmp_path)
    assert int(capsys.readouterr().out.rpartition(": ")[2].split()[0]) > 100


def test_numpy_arrays_of_the_other_byte_order_come_back(tmp_path):
    cstorch.save({"a": np.arange(3, dtype=">i4")}, tmp_path / "a.ckpt")
    same({"a": np.arange(3, dtype=">i4")}, cstorch.load(tmp_path / "a.ckpt"))


@pytest.mark.parametrize("count", [17_000, pytest.param(70_000, marks=pytest.mark.big)])
def test_more_tensors_than_one_node_of_the_tree_takes_and_than_a_plain_zip_takes(tmp_path, count):
    state = {f"t{i}": torch.tensor(i) for i in range(count)}
    cstorch.save(state, tmp_path / "a.ckpt")
    assert cstorch.load(tmp_path / "a.ckpt")[f"t{count - 1}"] == count - 1
    found = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert [int(v) for v in found.values()] == list(range(count))
    with h5py.File(tmp_path / "a.ckpt") as file:
        assert file["t16999"][()] == 16_999
        assert len(file) == count + 5


@pytest.mark.big
def test_a_file_of_more_than_4_gib(tmp_path):
    large = torch.zeros((1 << 32) + 5, dtype=torch.uint8)
    large[-5:] = 7
    state = {"a": torch.ones(3), "large": large, "c": torch.arange(1 << 20), "d": torch.full((2,), 4.0)}
    cstorch.save(state, tmp_path / "a.ckpt")
    for found in (cstorch.load(tmp_path / "a.ckpt"), torch.load(tmp_path / "a.ckpt", weights_only=True, mmap=True)):
        assert found["large"][-6:].tolist() == [0, 7, 7, 7, 7, 7]
        assert torch.equal(found["c"], state["c"])
        assert torch.equal(found["d"], state["d"])
    with h5py.File(tmp_path / "a.ckpt") as file:
        assert file["large"][-6:].tolist() == [0, 7, 7, 7, 7, 7]
        assert file["d"][1] == 4
    with zipfile.ZipFile(tmp_path / "a.ckpt") as file:
        assert file.getinfo("archive/data/1").file_size == (1 << 32) + 5
    cstorch.storage.verify(tmp_path / "a.ckpt")
