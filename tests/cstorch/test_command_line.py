"""`cstorch checkpoint`: show, verify, diff and convert."""

from pathlib import Path

import cstorch
import h5py
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from cstorch.command_line import main
from cstorch.errors import CheckpointContentError, CheckpointError

FIXTURES = Path(__file__).parent / "fixtures"


def run(*arguments, status=0):
    result = CliRunner().invoke(main, ["checkpoint", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture
def state():
    w = torch.randn(300, 200)
    return {"model": {"w": w, "tied": w, "b": torch.ones(3).bfloat16()}, "lr": [0.1, None], "a": np.arange(3)}


def test_show(tmp_path, state):
    cstorch.save(state, tmp_path / "a.ckpt")
    lines = run("show", tmp_path / "a.ckpt").splitlines()
    assert lines[0] == "model.w  float32 [300, 200]  234.4 KiB"
    assert "lr.0  0.1" in lines
    assert lines[-1].startswith("4 tensors, 468.8 KiB")
    assert "table" in run("show", FIXTURES / "reference_v0_5.mdl")
    assert "no.ckpt does not exist" in run("show", tmp_path / "no.ckpt", status=1)


def test_verify(tmp_path, state):
    cstorch.save(state, tmp_path / "a.ckpt")
    assert "is as it was written" in run("verify", tmp_path / "a.ckpt")
    data = bytearray((tmp_path / "a.ckpt").read_bytes())
    data[data.index(state["model"]["w"].numpy().tobytes()[:64])] ^= 1
    (tmp_path / "a.ckpt").write_bytes(data)
    assert "the tensor 'model.w' was damaged" in run("verify", tmp_path / "a.ckpt", status=1)


def test_diff(tmp_path, state):
    cstorch.save(state, tmp_path / "a.ckpt")
    torch.save(state, tmp_path / "b.ckpt")
    del state["a"]
    cstorch.save(state, tmp_path / "c.ckpt")
    state["model"]["b"][1] = 3
    state["lr"][1] = 5
    cstorch.save({**state, "new": 1}, tmp_path / "d.ckpt")
    assert run("diff", tmp_path / "a.ckpt", tmp_path / "a.ckpt") == "no difference\n"
    text = run("diff", tmp_path / "c.ckpt", tmp_path / "d.ckpt", status=1)
    assert text == "+ new\n! model.b  1 of 3 elements differ, by up to 2\n! lr.1  None became 5\n"


@pytest.mark.parametrize("kind", ["cstorch", "torch", "reference"])
def test_convert_and_back(tmp_path, state, kind):
    if kind == "torch":
        del state["a"]
    cstorch.save(state, tmp_path / "a.ckpt")
    run("convert", tmp_path / "a.ckpt", tmp_path / "b.ckpt", "--to", kind)
    assert run("diff", tmp_path / "a.ckpt", tmp_path / "b.ckpt") == "no difference\n"
    found = cstorch.load(tmp_path / "b.ckpt", "cpu")
    assert found["model"]["tied"].data_ptr() == found["model"]["w"].data_ptr()


def test_the_reference_layout_is_that_of_the_reference(tmp_path):
    run("convert", FIXTURES / "reference_v0_5.mdl", tmp_path / "a.mdl", "--to", "reference")
    with h5py.File(FIXTURES / "reference_v0_5.mdl") as want, h5py.File(tmp_path / "a.mdl") as found:
        assert dict(want.attrs) == dict(found.attrs)
        assert list(want) == list(found)
        for name in want:
            assert want[name].dtype == found[name].dtype
            np.testing.assert_array_equal(want[name][()], found[name][()])
            assert list(want[name].attrs) == list(found[name].attrs)
            for key in want[name].attrs:
                np.testing.assert_array_equal(want[name].attrs[key], found[name].attrs[key])
                assert want[name].attrs.get_id(key).dtype == found[name].attrs.get_id(key).dtype


def test_convert_to_safetensors(tmp_path, state):
    safetensors = pytest.importorskip("safetensors.torch")
    cstorch.save(state, tmp_path / "a.ckpt")
    assert "lr.0" in run("convert", tmp_path / "a.ckpt", tmp_path / "a.safetensors", "--to", "safetensors")
    found = safetensors.load_file(tmp_path / "a.safetensors")
    assert torch.equal(found["model.w"], state["model"]["w"])
    assert torch.equal(found["model.b"], state["model"]["b"])
    safetensors.save_file({k: v.clone() for k, v in found.items()}, tmp_path / "b.safetensors")
    for location in (None, "cache", "cpu"):
        again = cstorch.load(tmp_path / "b.safetensors", location)
        assert torch.equal(again["model.w"], state["model"]["w"])
    whole = (tmp_path / "b.safetensors").read_bytes()
    (tmp_path / "b.safetensors").write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="damaged safetensors"):
        cstorch.load(tmp_path / "b.safetensors")


def test_what_the_reference_has_no_form_for_is_named(tmp_path):
    from cstorch.storage.reference_writer import write_reference

    for value, what in (
        (b"x", "of type bytes"),
        (torch.ones(1).to(torch.float8_e5m2), "a tensor of torch.float8_e5m2"),
    ):
        with pytest.raises(CheckpointContentError, match=f"'a.0' is {what}"):
            write_reference({"a": [value]}, tmp_path / "a.mdl")
