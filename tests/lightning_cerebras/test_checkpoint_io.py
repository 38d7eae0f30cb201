"""CSXCheckpointIO writes whatever Lightning's own writer writes."""

import warnings

import cstorch
import pytest
import torch

import lightning_cerebras


class Config:
    """A hyperparameter of a class that only this file knows."""

    depth = 3


@pytest.fixture
def io():
    return lightning_cerebras.CSXCheckpointIO()


def test_hyperparameters_of_any_class_are_pickled_and_said(tmp_path, io):
    checkpoint = {"state_dict": {"w": torch.ones(2)}, "hyper_parameters": {"config": Config()}}
    with pytest.warns(UserWarning, match=r"'hyper_parameters\.config' is of type .*Config"):
        io.save_checkpoint(checkpoint, tmp_path / "a" / "x.ckpt")
    assert (
        type(io.load_checkpoint(tmp_path / "a" / "x.ckpt", weights_only=False)["hyper_parameters"]["config"]) is Config
    )
    assert torch.equal(cstorch.load(tmp_path / "a" / "x.ckpt")["state_dict"]["w"], torch.ones(2))


def test_hyperparameters_that_cannot_be_pickled_are_left_out(tmp_path, io):
    checkpoint = {"state_dict": {"w": torch.ones(2)}, "hyper_parameters": {"f": lambda: 1}}
    with pytest.warns(UserWarning, match="hyper_parameters are left out"):
        io.save_checkpoint(checkpoint, tmp_path / "x.ckpt")
    assert list(torch.load(tmp_path / "x.ckpt", weights_only=True)) == ["state_dict"]


def test_a_plain_checkpoint_warns_of_nothing(tmp_path, io):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        io.save_checkpoint({"epoch": 1, "state_dict": {"w": torch.ones(2)}}, tmp_path / "x.ckpt")
    assert io.load_checkpoint(tmp_path / "x.ckpt")["epoch"] == 1


def test_a_class_as_the_key_of_a_dict_is_written_as_lightning_does(tmp_path, io):
    path = tmp_path / "x.ckpt"
    with pytest.warns(UserWarning, match="pickled"):
        io.save_checkpoint({"callbacks": {dict: torch.ones(2)}}, path)
    assert torch.load(path, weights_only=False)["callbacks"][dict].tolist() == [1, 1]
    assert list(tmp_path.iterdir()) == [path]
