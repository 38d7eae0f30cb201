"""Where tensors go, what is lazy, what is refused, and what other files open."""

import io
import os
import pickle

import cstorch
import pytest
import torch
from cstorch.errors import CheckpointContentError, CheckpointError, CheckpointNotFoundError
from torch import nn


@pytest.fixture
def state():
    return {"model": {"w": torch.randn(400, 300), "b": torch.randn(3)}, "list": [torch.ones(2)], "n": 3}


def test_every_access_reads_again_unless_cached(tmp_path, state):
    cstorch.save(state, tmp_path / "a.ckpt")
    lazy = cstorch.load(tmp_path / "a.ckpt")
    for name in ("w", "b"):
        lazy["model"][name].zero_()
        assert torch.equal(lazy["model"][name], state["model"][name])
    cached = cstorch.load(tmp_path / "a.ckpt", "cache")
    cached["model"]["w"].zero_()
    assert cached["model"]["w"].sum() == 0
    assert cached["model"]["w"] is cached["model"]["w"]
    assert torch.equal(cstorch.load(tmp_path / "a.ckpt")["model"]["w"], state["model"]["w"])


def test_a_lazy_dict_is_a_dict(tmp_path, state):
    cstorch.save(state, tmp_path / "a.ckpt")
    model = cstorch.load(tmp_path / "a.ckpt")["model"]
    want = state["model"]
    copies = [model, dict(model), {**model}, model.copy(), model | {}, {} | model, pickle.loads(pickle.dumps(model))]
    copies += [dict(model.items()), dict(zip(model, model.values())), {k: model.get(k) for k in model}]
    for copy in copies:
        assert isinstance(copy, dict)
        assert list(copy) == ["w", "b"]
        assert all(torch.equal(copy[k], want[k]) for k in want)
    assert "w" in model
    assert model.get("x", 4) == 4
    assert model.setdefault("y", 5) == 5
    assert torch.equal(model.pop("w"), want["w"])
    assert model.popitem() == ("y", 5)
    model["b"] = 1
    assert model == {"b": 1}


@pytest.mark.parametrize(
    "location", [torch.device("cpu"), {"cpu": "cpu"}, lambda storage, where: storage, lambda s, w: None]
)
def test_map_location_is_that_of_torch(tmp_path, state, location):
    cstorch.save(state, tmp_path / "a.ckpt")
    found = cstorch.load(tmp_path / "a.ckpt", location)
    assert type(found["model"]) is dict
    assert torch.equal(found["model"]["w"], state["model"]["w"])


@pytest.mark.parametrize("location", [None, "cache"])
def test_a_lazily_loaded_state_is_saved_again(tmp_path, state, location):
    state["model"]["tied"] = state["model"]["w"]
    state["model"]["zeros"] = torch.zeros(1).expand(10_000, 10_000)
    module = nn.BatchNorm1d(2)
    state["module"] = module.state_dict()
    cstorch.save(state, tmp_path / "a.ckpt")
    size = (tmp_path / "a.ckpt").stat().st_size
    cstorch.save(cstorch.load(tmp_path / "a.ckpt", location), tmp_path / "a.ckpt")
    assert (tmp_path / "a.ckpt").stat().st_size < size + 100
    found = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert torch.equal(found["model"]["w"], state["model"]["w"])
    assert found["model"]["tied"].data_ptr() == found["model"]["w"].data_ptr()
    assert found["module"]._metadata == module.state_dict()._metadata
    assert (type(found), type(found["module"])) == (dict, type(module.state_dict()))
    found = cstorch.load(tmp_path / "a.ckpt", "cpu")
    assert found["model"]["tied"].data_ptr() == found["model"]["w"].data_ptr()
    assert torch.equal(found["list"][0], torch.ones(2))


def test_map_location_meta_and_nonsense(tmp_path, state):
    cstorch.save(state, tmp_path / "a.ckpt")
    assert cstorch.load(tmp_path / "a.ckpt", "meta")["model"]["w"].is_meta
    with pytest.raises(TypeError, match="map_location is 3"):
        cstorch.load(tmp_path / "a.ckpt", 3)


def test_csx_tensors_tied_and_constant(csx, tmp_path):
    with csx.device:
        model = nn.Sequential(nn.Linear(300, 300), nn.LayerNorm(300), nn.Linear(300, 300))
        model[2].weight = model[0].weight
    before = torch.get_rng_state()
    cstorch.save({"model": model.state_dict(), "zeros": cstorch.zeros((1 << 20, 25600))}, tmp_path / "a.ckpt")
    assert torch.equal(before, torch.get_rng_state())
    assert model[0].weight.is_pending
    assert (tmp_path / "a.ckpt").stat().st_size < 300 * 300 * 4 + 30_000
    for location in (None, "cache", "cpu", "csx"):
        found = cstorch.load(tmp_path / "a.ckpt", location)
        assert found["zeros"].shape == (1 << 20, 25600)
        assert location == "csx" or found["zeros"][5, 5] == 0
        for name, value in model.state_dict().items():
            assert torch.equal(found["model"][name].cpu(), value.cpu()), (location, name)
    assert found["zeros"].is_pending
    assert found["model"]["2.weight"].device.type == "csx"
    found = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert found["zeros"][7, 7] == 0
    assert torch.equal(found["model"]["1.weight"], torch.ones(300))


class Plain:
    def __init__(self, x):
        self.x = x


def test_objects_without_a_safe_form_are_named(tmp_path):
    for value in (Plain(1), torch.nn.Linear(1, 1), {1: {Plain(1)}}):
        with pytest.raises(CheckpointContentError, match=r"'a\.b.* is of type .*pickle_objects=True"):
            cstorch.save({"a": {"b": value}}, tmp_path / "a.ckpt")
    with pytest.raises(TypeError, match=r"'a\.0' is a tensor of torch\.qint8"):
        cstorch.save({"a": [torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)]}, tmp_path / "a.ckpt")
    with pytest.raises(TypeError, match=r"'a' is a tensor of the layout torch\.sparse_coo.*to_dense"):
        cstorch.save({"a": torch.eye(3).to_sparse()}, tmp_path / "a.ckpt")
    with pytest.raises(TypeError, match=r"'a' is a nested tensor.*unbind"):
        cstorch.save({"a": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])}, tmp_path / "a.ckpt")
    with pytest.raises(TypeError, match="'a' is a tensor on the device meta"):
        cstorch.save({"a": torch.empty(2, device="meta")}, tmp_path / "a.ckpt")
    with pytest.raises(TypeError, match="contains itself"):
        a = {}
        a["a"] = a
        cstorch.save(a, tmp_path / "a.ckpt")
    assert os.listdir(tmp_path) == []


def test_pickled_objects_are_refused_by_name_unless_trusted(tmp_path):
    state = {"ok": torch.ones(2), "a": [1, {"o": Plain(torch.arange(3.0))}], "sparse": torch.eye(2).to_sparse()}
    cstorch.save(state, tmp_path / "a.ckpt", pickle_objects=True)
    lazy = cstorch.load(tmp_path / "a.ckpt")
    assert torch.equal(lazy["ok"], torch.ones(2))
    with pytest.raises(CheckpointError, match=r"'a\.1\.o' .* was pickled.*weights_only=False"):
        lazy["a"][1]["o"]
    with pytest.raises(CheckpointError, match=r"was pickled"):
        cstorch.load(tmp_path / "a.ckpt", "cpu")
    for found in (
        cstorch.load(tmp_path / "a.ckpt", weights_only=False),
        torch.load(tmp_path / "a.ckpt", weights_only=False),
    ):
        assert torch.equal(found["a"][1]["o"].x, torch.arange(3.0))
        assert torch.equal(found["sparse"].to_dense(), torch.eye(2))


def test_files_of_torch_zip_and_legacy_open(tmp_path, state):
    torch.save(state, tmp_path / "zip.pt")
    torch.save(state, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    for name in ("zip.pt", "legacy.pt"):
        for location in (None, "cache", "cpu", {"cpu": "cpu"}):
            found = cstorch.load(tmp_path / name, location)
            assert torch.equal(found["model"]["w"], state["model"]["w"])
    torch.save({"o": Plain(1)}, tmp_path / "zip.pt")
    with pytest.raises(CheckpointError, match=r"zip\.pt"):
        cstorch.load(tmp_path / "zip.pt")
    assert cstorch.load(tmp_path / "zip.pt", weights_only=False)["o"].x == 1


def test_streams_open(tmp_path, state):
    cstorch.save(state, tmp_path / "a.ckpt")
    stream = io.BytesIO((tmp_path / "a.ckpt").read_bytes())
    assert torch.equal(cstorch.load(stream)["model"]["w"], state["model"]["w"])
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    assert torch.equal(cstorch.load(stream)["model"]["w"], state["model"]["w"])


def test_a_missing_file_is_both_kinds_of_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        cstorch.load(tmp_path / "no.mdl")
    with pytest.raises(CheckpointNotFoundError, match=r"no\.mdl does not exist"):
        cstorch.load(tmp_path / "no.mdl")
    (tmp_path / "empty.mdl").touch()
    with pytest.raises(CheckpointError, match="it is empty"):
        cstorch.load(tmp_path / "empty.mdl")


def test_long_saves_and_loads_show_a_bar_on_a_terminal():
    from cstorch.storage.progress import ByteProgress

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for stream, clock, wanted in (
        (Terminal(), iter([0.0, 0.5, 1.5, 1.6, 3.0]), True),
        (Terminal(), iter([0.0, 0.1, 0.2, 0.3, 0.4]), False),
        (io.StringIO(), iter([0.0] * 5), False),
    ):
        with ByteProgress("saving a.ckpt", 1 << 30, stream, lambda clock=clock: next(clock)) as progress:
            for done in (1, 2, 3, 4):
                progress(done << 28)
        assert ("saving a.ckpt [###" in stream.getvalue()) == wanted
        assert not wanted or stream.getvalue().endswith("\r\x1b[2K")
