"""numpy arrays become tensors and back: the same values, the same memory where that can be."""

import cstorch
import ml_dtypes
import numpy as np
import pytest
import torch

REAL = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]


@pytest.mark.parametrize("dtype", [*REAL, "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2)])
def test_values_dtypes_and_memory_go_both_ways(dtype, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    tensor = cstorch.from_numpy(array)
    assert tensor.dtype is getattr(torch, dtype)
    back = cstorch.to_numpy(tensor)
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)
    assert back.shape == shape
    if array.size:
        array[...] = 0
        assert not tensor.any()
        assert not back.any()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_that_numpy_does_not_have(name):
    tensor = torch.tensor([[1.5, -0.25], [448.0, 0.0]]).to(getattr(torch, name))
    array = cstorch.to_numpy(tensor)
    assert array.dtype == np.float32
    assert np.array_equal(array, tensor.float().numpy())
    narrow = array.astype(getattr(ml_dtypes, name))
    back = cstorch.from_numpy(narrow)
    assert back.dtype is tensor.dtype
    assert torch.equal(back.float(), tensor.float())
    narrow[0, 0] = 0
    assert back[0, 0] == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda a: np.broadcast_to(a, (2, 3)),
        lambda a: a[::-1],
        lambda a: a.astype(">f4"),
        lambda a: a.astype(">i8"),
        lambda a: a[1:2].T,
        lambda a: np.frombuffer(a.tobytes(), a.dtype),
        lambda a: a[1],
    ],
)
def test_arrays_that_torch_cannot_use_as_they_are(make):
    array = make(np.arange(3, dtype=np.float32))
    tensor = cstorch.from_numpy(array)
    assert np.array_equal(tensor.numpy(), array)
    tensor.zero_()  # read-only memory is not touched


def test_tensors_that_numpy_cannot_use_as_they_are(csx):
    parameter = torch.nn.Parameter(torch.ones(2))
    assert cstorch.to_numpy(parameter).tolist() == [1, 1]
    assert cstorch.to_numpy(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]
    assert cstorch.to_numpy(torch.tensor([1 + 2j]).conj().imag).tolist() == [-2]
    assert cstorch.to_numpy(torch.eye(2).to_sparse()).tolist() == [[1, 0], [0, 1]]
    assert cstorch.to_numpy(torch.ones(2, device="csx")).tolist() == [1, 1]
    assert cstorch.to_numpy(cstorch.full((2,), 3.0)).tolist() == [3, 3]


@pytest.mark.parametrize("value", [[1.0], 3, torch.ones(1), None])
def test_what_is_no_array_is_refused(value):
    with pytest.raises(TypeError, match=rf"from_numpy got a {type(value).__name__}, expected a numpy array"):
        cstorch.from_numpy(value)


def test_other_dtypes_are_refused():
    with pytest.raises(TypeError):
        cstorch.from_numpy(np.array(["a"]))
    with pytest.raises(TypeError, match="to_numpy got a list, expected a torch tensor"):
        cstorch.to_numpy([1])


def test_values_of_a_traced_step_are_not_there(csx):
    @cstorch.trace
    def step(x):
        return cstorch.to_numpy(x + 1)

    with pytest.raises(cstorch.errors.ValueReadError, match=r"to_numpy\(\)"):
        step(torch.ones(1))
