"""Reads checkpoints of random state dicts with the torch and h5py of another interpreter, which lacks cstorch.

    python tests/conformance/checkpoint_readers.py INTERPRETER [--count 200] [--seed 0]

INTERPRETER is the python of a virtual environment with old releases: the oldest that Python 3.11 takes are torch
1.13.0 (from PyPI it needs the CUDA libraries, 3.3 GB) with numpy below 2, and h5py 3.8.0. The state dicts hold
tensors of all dtypes that this torch knows, transposed, sliced, expanded and tied. `torch.load(weights_only=True)`,
with mmap=True where it has that, and h5py alone each read every tensor, which is compared byte by byte.
"""

import argparse
import ctypes
import io
import json
import pickle
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

DTYPES = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
    "complex128",
    "complex64",
    "uint64",
    "uint32",
    "uint16",
    "float8_e5m2",
    "float8_e4m3fn",
    "float8_e5m2fnuz",
    "float8_e4m3fnuz",
]
CONVERTED = ("bfloat16", "float8_e5m2")  # h5py shows their values as those of a dtype that numpy has


def known():
    """The dtypes that there are, and "number" if `weights_only=True` reads a float that `torch.save` wrote."""
    stream = io.BytesIO()
    torch.save(0.5, stream)
    stream.seek(0)
    try:
        numbers = ["number"] if torch.load(stream, weights_only=True) == 0.5 else []
    except pickle.UnpicklingError:  # torch 1.13
        numbers = []
    return [name for name in DTYPES if hasattr(torch, name)] + numbers


def content(tensor):
    tensor = tensor.detach().contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()) if tensor.numel() else b""


def flat(value, path=()):
    if isinstance(value, dict):
        for key, part in value.items():
            yield from flat(part, (*path, key))
    elif isinstance(value, (list, tuple)):
        for key, part in enumerate(value):
            yield from flat(part, (*path, key))
    elif isinstance(value, torch.Tensor):
        yield ".".join(map(str, path)), value


def read(folder):
    """In the other interpreter: compare what it reads."""
    import h5py

    count = 0
    versions = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    for path in sorted(folder.glob("*.json")):
        expected = json.loads(path.read_text())
        checkpoint = str(path.with_suffix(".ckpt"))
        ways = [{}] if versions < (2, 1) else [{}, {"mmap": True}]
        for options in ways:
            found = dict(flat(torch.load(checkpoint, weights_only=True, map_location="cpu", **options)))
            assert list(found) == list(expected), (path, list(found), list(expected))
            for name, (dtype, shape, data, _) in expected.items():
                tensor = found[name]
                assert str(tensor.dtype) == "torch." + dtype, (path, name)
                assert list(tensor.shape) == shape, (path, name)
                assert content(tensor).hex() == data, (path, name)
        with h5py.File(checkpoint, "r") as file:
            for name, (dtype, shape, data, values) in expected.items():
                array = file[name][()]
                assert list(array.shape) == shape, (path, name)
                if dtype not in CONVERTED:
                    assert array.tobytes().hex() == data, (path, name, array)
                elif array.dtype.kind == "f":
                    assert array.astype("float64").tobytes().hex() == values, (path, name, array)
                count += 1
    version = h5py.version.hdf5_version
    print(f"torch {torch.__version__}, h5py {h5py.__version__} (HDF5 {version}): {count} tensors right")


def tensor(rng, dtypes):
    dtype = getattr(torch, rng.choice([name for name in dtypes if name != "number"]))
    shape = [rng.randrange(5) for _ in range(rng.randrange(5))]
    if rng.random() < 0.05:
        shape = [rng.randrange(200, 600), 700]
    made = torch.randint(0, 2 if dtype is torch.bool else 256, (*shape, dtype.itemsize), dtype=torch.uint8)
    if dtype.is_floating_point or dtype.is_complex:
        made[..., :] = made % 64  # no NaNs, of which conversions keep the kind but not the bits
    made = made.view(dtype).view(shape)
    how = rng.randrange(4)
    if how == 1 and made.dim() > 1:
        return made.transpose(0, -1)
    if how == 2 and made.dim() and made.shape[0] > 1:
        return made[1:]
    if how == 3 and made.numel():
        return made.flatten()[:1].expand(3, 2)
    return made


def state(rng, dtypes, depth=3):
    made = {}
    for i in range(rng.randrange(1, 6)):
        kind = rng.randrange(8)
        if depth and kind == 0:
            made[f"d{i}"] = state(rng, dtypes, depth - 1)
        elif depth and kind == 1:
            made[f"l{i}"] = list(state(rng, dtypes, depth - 1).values())
        elif kind == 2:
            made[f"v{i}"] = rng.choice([1, 0.5 if "number" in dtypes else 2, "text", None, True, (1, "a")])
        elif kind == 3 and made:
            made[f"t{i}"] = rng.choice(list(made.values()))
        else:
            made[f"w{i}"] = tensor(rng, dtypes)
    return made


def write(folder, count, seed, dtypes):
    import cstorch

    rng = random.Random(seed)
    torch.manual_seed(seed)
    for i in range(count):
        made = state(rng, dtypes)
        cstorch.save(made, folder / f"{i:04}.ckpt")
        rows = {}
        for name, value in flat(made):
            dtype = str(value.dtype).removeprefix("torch.")
            values = content(value.double()).hex() if dtype in CONVERTED else ""
            rows[name] = (dtype, list(value.shape), content(value).hex(), values)
        (folder / f"{i:04}.json").write_text(json.dumps(rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("interpreter")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    def there(*arguments):
        return subprocess.run(
            [options.interpreter, __file__, *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    with tempfile.TemporaryDirectory() as name:
        write(Path(name), options.count, options.seed, there("--known").split())
        print(there("--read", name), end="")


if __name__ == "__main__":
    if sys.argv[1:] == ["--known"]:
        print(*known())
    elif len(sys.argv) == 3 and sys.argv[1] == "--read":
        read(Path(sys.argv[2]))
    else:
        main()
