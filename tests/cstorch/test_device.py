"""The csx device outside traced steps: operations run at once and give what the cpu gives."""

import copy
import io
import os
import pickle
import subprocess
import sys

import pytest
import torch
from cstorch.errors import BackendError
from torch import nn


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.zeros(2, 3, device=d),
        lambda d: torch.arange(5, device=d),
        lambda d: torch.tensor([[1.0, 2.0]], device=d),
        lambda d: torch.full((2,), 3, device=d),
        lambda d: torch.eye(3, device=d),
        lambda d: torch.linspace(0, 1, 4, device=d),
        lambda d: torch.randn(3, device=d),
        lambda d: torch.randint(9, (4,), device=d),
        lambda d: torch.ones(2, device=d).bernoulli_(0.5),
    ],
)
def test_factories_give_what_the_cpu_gives(make):
    torch.manual_seed(1)
    expected = make("cpu")
    torch.manual_seed(1)
    found = make("csx")
    assert found.device.type == "csx"
    assert torch.equal(found.cpu(), expected)


def test_operations_and_views():
    x = torch.randn(3, 4)
    c = x.to("csx")
    assert torch.equal((c @ c.t()).cpu(), x @ x.t())
    c.view(12)[3:5].add_(1)
    x.view(12)[3:5].add_(1)
    assert torch.equal(c.cpu(), x)
    c.t_()
    assert c.shape == (4, 3)
    assert c.stride() == x.t().stride()
    assert torch.equal(torch.cat([c, c]).cpu(), torch.cat([x.t(), x.t()]))
    assert c[1].tolist() == x.t()[1].tolist()
    assert c.sum().item() == pytest.approx(x.sum().item())
    assert [bool(c.max() > 100), len(c), float(c[0, 0])] == [False, 4, float(x[0, 0])]


def test_autograd_matches_the_cpu():
    x, w = torch.randn(3, 4), torch.randn(5, 4)
    c = w.to("csx").requires_grad_()
    w.requires_grad_()
    torch.nn.functional.gelu(x @ w.t()).sum().backward()
    torch.nn.functional.gelu(x.to("csx") @ c.t()).sum().backward()
    torch.testing.assert_close(c.grad.cpu(), w.grad)


def test_mixing_devices_is_refused_with_the_line():
    with pytest.raises(BackendError, match=r"test_device\.py.*of shape \(2,\).*@cstorch\.trace"):
        torch.ones(2).to("csx") + torch.ones(2)


def test_copies():
    p = nn.Parameter(torch.randn(2, 2))
    module = nn.Module()
    module.p = p
    module.to("csx")
    module.p.grad = torch.ones(2, 2).to("csx")
    twin = copy.deepcopy(module)
    assert isinstance(twin.p, nn.Parameter)
    assert twin.p.requires_grad
    assert twin.p is not module.p
    twin.p.data.zero_()
    assert module.p.abs().sum() > 0
    assert twin.p.grad is None, "as PyTorch copies a parameter"
    again = pickle.loads(pickle.dumps(module.p))
    assert torch.equal(again.cpu(), module.p.cpu())
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)["p"].cpu(), module.p.detach().cpu())


def test_state_dicts_load_both_ways():
    model, source = nn.Linear(2, 2).to("csx"), nn.Linear(2, 2)
    model.load_state_dict(source.state_dict())
    assert torch.equal(model.weight.detach().cpu(), source.weight)
    target = nn.Linear(2, 2)
    target.load_state_dict(model.state_dict())
    assert torch.equal(target.weight, source.weight)


def test_repr_says_the_device():
    assert repr(torch.ones(2).to("csx")) == "tensor([1., 1.], device='csx:0')"
    assert "device='csx:0', requires_grad=True)" in repr(nn.Parameter(torch.ones(1).to("csx")))


def test_numpy_needs_cpu():
    import numpy as np

    c = torch.ones(2).to("csx")
    with pytest.raises(TypeError, match=r"tensor\.cpu\(\)\.numpy\(\)"):
        c.numpy()
    with pytest.raises(TypeError, match=r"tensor\.cpu\(\)\.numpy\(\)"):
        np.asarray(c)
    assert c.numpy(force=True).tolist() == [1, 1]


@pytest.mark.parametrize("view", ["detach", "t", "flatten", "squeeze"])
def test_views_of_ordinary_tensors_in_inference_mode(view):
    weight = torch.nn.Linear(3, 2).to("csx").weight
    with torch.inference_mode():
        seen = getattr(weight, view)()
        assert not seen.is_inference()
        assert (weight + 1).is_inference()
        weight.add_(1)
        torch.testing.assert_close(seen.cpu(), getattr(weight.cpu(), view)())


def test_inference_mode():
    with torch.inference_mode():
        model = nn.Linear(2, 2).to("csx")
        assert model(torch.ones(1, 2).to("csx")).shape == (1, 2)


def test_the_random_stream_is_the_cpu_s():
    assert torch.equal(torch.csx.get_rng_state(), torch.get_rng_state())


def test_a_checkpoint_of_csx_tensors_opens_as_weights_only(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to("csx")
    model[1].weight = model[0].weight
    saved = {"state": model.state_dict(), "parameter": model[0].bias, "view": torch.randn(3, 4).to("csx").t()}
    torch.save(saved, tmp_path / "saved.pt")
    loaded = torch.load(tmp_path / "saved.pt", weights_only=True)
    assert loaded["view"].device.type == "csx"
    assert torch.equal(loaded["view"].cpu(), saved["view"].cpu())
    assert isinstance(loaded["parameter"], nn.Parameter)
    assert loaded["parameter"].requires_grad
    assert torch.equal(loaded["state"]["1.weight"].cpu(), model[0].weight.detach().cpu())
    there = torch.load(tmp_path / "saved.pt", weights_only=True, map_location="cpu")
    assert type(there["parameter"]) is nn.Parameter
    code = (
        "import sys, torch; t = torch.load(sys.argv[1], weights_only=True, map_location='cpu')\n"
        "assert 'cstorch' not in sys.modules; print(t['view'].sum().item())"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "saved.pt")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
    assert out.returncode == 0, out.stderr
    assert float(out.stdout) == pytest.approx(saved["view"].sum().item())


def test_a_storage_without_memory_is_not_shared():
    x = torch.ones(4).to("csx")
    with pytest.raises(BackendError, match=r"test_device\.py.*no memory that could be shared.*as_strided"):
        torch.empty(0, device="csx").set_(x.untyped_storage(), 0, (2,), (1,))


def test_a_shallow_copy_shares_memory():
    x = nn.Parameter(torch.ones(2).to("csx"))
    twin = copy.copy(x)
    assert isinstance(twin, nn.Parameter)
    twin.data.zero_()
    assert x.tolist() == [0, 0]
