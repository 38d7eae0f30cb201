"""Checkpoints: written whole or not at all, opened by plain torch.load, read without running code."""

import os
import pickle

import cstorch
import pytest
import torch
from cstorch.errors import CheckpointError
from torch import nn


def test_a_checkpoint_of_csx_tensors_opens_in_plain_torch(csx, tmp_path):
    model = nn.Linear(2, 2)
    cstorch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters())
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": 3,
        "tied": [model.weight] * 2,
    }
    cstorch.save(state, tmp_path / "a.mdl")
    found = torch.load(tmp_path / "a.mdl", weights_only=True)
    assert type(found["model"]["weight"]) is torch.Tensor
    assert torch.equal(found["model"]["weight"], model.weight.detach().cpu())
    assert found["tied"][0].data_ptr() == found["tied"][1].data_ptr()
    for location in (None, "cache", "cpu"):
        again = cstorch.load(tmp_path / "a.mdl", map_location=location)
        assert again["step"] == 3
        assert torch.equal(again["model"]["bias"], model.bias.detach().cpu())
    assert cstorch.load(tmp_path / "a.mdl", "csx")["model"]["bias"].device.type == "csx"


def test_errors_say_which_file_and_why(tmp_path):
    with pytest.raises(CheckpointError, match=r"missing\.mdl does not exist"):
        cstorch.load(tmp_path / "missing.mdl")
    with pytest.raises(CheckpointError, match="does not exist or is not a file"):
        cstorch.load(tmp_path)
    (tmp_path / "bad.mdl").write_text("no checkpoint")
    with pytest.raises(CheckpointError, match=r"bad\.mdl cannot be read"):
        cstorch.load(tmp_path / "bad.mdl")
    with pytest.raises(CheckpointError, match="cannot be written"):
        cstorch.save({}, tmp_path / "no" / "folder.mdl")


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


def test_loading_runs_no_code(tmp_path):
    with open(tmp_path / "evil.mdl", "wb") as file:
        pickle.dump({"a": Evil()}, file)
    torch.save({"a": Evil()}, tmp_path / "evil.pt")
    for name in ("evil.mdl", "evil.pt"):
        with pytest.raises(CheckpointError):
            cstorch.load(tmp_path / name)
    assert not (tmp_path / "evil").exists()


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path):
    cstorch.save({"a": 1}, tmp_path / "a.mdl")
    with pytest.raises(Exception, match="pickle"):
        cstorch.save({"a": lambda: None}, tmp_path / "a.mdl")
    assert os.listdir(tmp_path) == ["a.mdl"]
    assert cstorch.load(tmp_path / "a.mdl") == {"a": 1}


def test_a_traced_tensor_is_not_saved(csx, tmp_path):
    handle = cstorch.trace(lambda x: x * 2)(torch.ones(2))
    with pytest.raises(cstorch.errors.ValueReadError, match="saving a tensor"):
        cstorch.save({"a": handle}, tmp_path / "a.mdl")
