"""Making backends, preparing models, and the errors of both."""

import cstorch
import pytest
import torch
from cstorch.errors import BackendError
from torch import nn


def test_names_are_case_insensitive_and_describe_themselves():
    with cstorch.backend("cpu") as backend:
        assert backend.is_cpu
        assert not backend.is_csx
        assert backend.backend_type.name == "CPU"
        assert cstorch.backend() is backend
        assert cstorch.current_torch_device() == torch.device("cpu")
        assert not cstorch.use_cs()
    with cstorch.backend("CSX") as backend:
        assert backend.is_csx
        assert backend.torch_device == torch.device("csx", 0)
        assert cstorch.use_cs()
        assert backend.is_e2e_execution
        assert backend.artifact_dir.name == "cerebras_logs"


def test_wrong_uses_name_what_was_expected():
    with pytest.raises(ValueError, match="'TPU', expected one of CSX, CPU, GPU"):
        cstorch.backend("TPU")
    with pytest.raises(TypeError, match="backend_type is a int"):
        cstorch.backend(1)
    with pytest.raises(TypeError, match="no backend_type"):
        cstorch.backend(artifact_dir="x")
    with pytest.raises(BackendError, match="no backend has been instantiated"):
        cstorch.backend()
    with (
        cstorch.backend("CSX"),
        pytest.raises(RuntimeError, match="A backend with type CSX has already been"),
    ):
        cstorch.backend("CPU")
    with pytest.raises(TypeError, match="expected a ClusterConfig"):
        cstorch.backend("CSX", cluster_config={"num_csx": 2})


def test_current_backend_is_deprecated():
    with cstorch.backend("CPU") as backend, pytest.warns(DeprecationWarning, match=r"cstorch\.backend\(\)"):
        assert cstorch.current_backend() is backend
    assert cstorch.current_backend(raise_exception=False, raise_warning=False) is None


def test_backend_is_a_module_and_a_function():
    import cstorch.backend
    from cstorch.backend import Backend

    with cstorch.backend("CPU") as backend:
        assert isinstance(backend, Backend)


def test_compile_keeps_identity_ties_and_the_way_back(csx):
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    weight, value = model[0].weight, model[0].weight.detach().clone()
    compiled = cstorch.compile(model)
    assert model[0].weight is weight is model[1].weight
    assert weight.device.type == "csx"
    assert isinstance(weight, nn.Parameter)
    assert model.device == csx.torch_device
    assert list(compiled.parameters()) == [weight]
    assert compiled.train() is model
    with pytest.raises(AttributeError, match="use the model that was given"):
        _ = compiled.something
    model.cpu()
    assert model[0].weight is weight is model[1].weight
    assert type(weight) is nn.Parameter
    assert torch.equal(weight, value)


def test_compile_without_a_backend_makes_the_cpu_one():
    cstorch.compile(nn.Linear(1, 1))
    assert cstorch.backend().is_cpu


def test_compile_refuses_what_is_no_module_and_another_backend(csx):
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module"):
        cstorch.compile(lambda x: x)
    from cstorch.backends.cpu_backend import CpuBackend

    with pytest.raises(BackendError, match="another backend than the current one"):
        cstorch.compile(nn.Linear(1, 1), CpuBackend())


def test_a_step_runs_as_it_is_on_the_cpu_and_without_a_backend():
    step = cstorch.trace(lambda x: (x * 2).sum().item())
    assert step(torch.ones(3)) == 6
    with cstorch.backend("CPU"):
        assert step(torch.ones(3)) == 6


def test_a_checkpoint_closure_needs_a_backend():
    with pytest.raises(BackendError, match="was called with no backend"):
        cstorch.checkpoint_closure(lambda: None)()


def test_creation_functions(csx):
    assert cstorch.zeros((2, 3)).device.type == "csx"
    assert cstorch.full((2,), 2.5, torch.float64).tolist() == [2.5, 2.5]
    assert cstorch.ones_like(torch.zeros(2, dtype=torch.int32)).dtype == torch.int32
    assert cstorch.zeros_like(cstorch.ones((2,))).tolist() == [0, 0]
    assert cstorch.full_like(cstorch.ones((2,)), 3, torch.int64).tolist() == [3, 3]


def test_numpy_both_ways(csx):
    import numpy as np

    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = cstorch.from_numpy(array)
    array[0, 0] = 9
    assert tensor[0, 0] == 9
    assert np.array_equal(cstorch.to_numpy(tensor.to("csx")), array)
    assert cstorch.to_numpy(torch.tensor([1.5], dtype=torch.bfloat16)).tolist() == [1.5]
    array.flags.writeable = False
    assert cstorch.from_numpy(array)[0, 0] == 9
