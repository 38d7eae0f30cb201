"""Files that the reference implementation wrote load, and their pickled parts do not unless asked for."""

import pickle
from pathlib import Path

import cstorch
import h5py
import numpy as np
import pytest
import torch
from cstorch.errors import CheckpointError

FIXTURES = Path(__file__).parent / "fixtures"


def check(state):
    torch.manual_seed(3)
    model = state["model"]
    assert torch.equal(model["emb.weight"], torch.randn(6, 2))
    assert torch.equal(model["head.weight"], model["emb.weight"])
    assert torch.equal(model["norm.weight"], torch.ones(2))
    assert model["mask"].tolist() == [[True, False], [False, True]]
    assert torch.equal(model["bf16"], torch.tensor([0.5, -1.25], dtype=torch.bfloat16))
    assert torch.equal(model["fp16"], torch.tensor([2.5], dtype=torch.float16))
    assert torch.equal(model["count"], torch.tensor(11))
    assert torch.equal(state["optimizer"]["state"][0]["step"], torch.tensor(3.0))
    assert torch.equal(state["optimizer"]["state"][0]["exp_avg"], torch.full((6, 2), 0.125))
    assert state["optimizer"]["param_groups"] == [{"lr": 0.003, "betas": (0.9, 0.99), "params": [0, 1]}]
    rest = {k: state[k] for k in ("global_step", "note", "nothing", "sizes")}
    assert rest == {"global_step": 3, "note": "written by the reference", "nothing": None, "sizes": [4, 8.5, "z"]}
    np.testing.assert_array_equal(state["table"], np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("location", [None, "cache", "cpu", torch.device("cpu"), {"cpu": "cpu"}])
def test_the_present_version_loads(location):
    state = cstorch.load(FIXTURES / "reference_v0_5.mdl", location)
    check(state)
    if location is not None:
        state["model"]["emb.weight"][0, 0] = 9.0
        assert state["model"]["head.weight"][0, 0] == 9.0


def test_lz4_loads():
    pytest.importorskip("hdf5plugin")
    found = cstorch.load(FIXTURES / "reference_v0_5_lz4.mdl")["model"]["w"]
    assert torch.equal(found, torch.arange(1000.0).reshape(10, 100))


def test_it_is_saved_again_and_opens_everywhere(tmp_path):
    cstorch.save(cstorch.load(FIXTURES / "reference_v0_5.mdl"), tmp_path / "a.ckpt")
    check(cstorch.load(tmp_path / "a.ckpt"))
    check(torch.load(tmp_path / "a.ckpt", weights_only=False))


@pytest.fixture
def older(tmp_path):
    """A file of the older kind, with a pickled part."""
    with h5py.File(tmp_path / "old.mdl", "w") as file:
        for name, value, kind in (
            ("model.w", np.arange(3, dtype=np.float32), "TorchTensorH5Type"),
            ("model.b", torch.tensor([0.5]).bfloat16().view(torch.int16).numpy(), "TorchTensorH5Type"),
            ("table", np.arange(2), "NumpyArrayH5Type"),
        ):
            file[name] = value
            file[name].attrs["__H5_TYPE__"] = kind
        file["model.b"].attrs["is_bfloat16"] = True
        file["step"] = h5py.Empty("f4")
        file["step"].attrs["__H5_TYPE__"] = "ObjectH5Type"
        file["step"].attrs["__BYTES__"] = np.frombuffer(pickle.dumps({"a": 5}), np.uint8)
    return tmp_path / "old.mdl"


def test_pickled_parts_are_refused_unless_asked_for(older):
    with pytest.raises(CheckpointError, match=r"'step' in .*old\.mdl was pickled.*weights_only=False"):
        cstorch.load(older)
    state = cstorch.load(older, weights_only=False)
    assert state["step"] == {"a": 5}
    assert torch.equal(state["model"]["w"], torch.arange(3.0))
    assert torch.equal(state["model"]["b"], torch.tensor([0.5], dtype=torch.bfloat16))
    assert state["table"].tolist() == [0, 1]


def test_other_hdf5_files_are_named_as_such(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = 1
    with pytest.raises(CheckpointError, match="HDF5 of an unknown kind"):
        cstorch.load(tmp_path / "a.h5")
    (tmp_path / "b.h5").write_bytes((tmp_path / "a.h5").read_bytes()[:700])
    with pytest.raises(CheckpointError, match=r"b\.h5 cannot be read"):
        cstorch.load(tmp_path / "b.h5")
