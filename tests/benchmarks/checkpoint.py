"""Times saving and loading of checkpoints beside the limit of the disk, torch and safetensors.

    python tests/benchmarks/checkpoint.py [--mib 1024] [--rounds 7] [--folder DIR] [--model-mib 8192]

Methods take turns in random order, round after round; the table shows the minimum and the median in ms. `limit` is
posix_fallocate and a write of the same bytes. Loads run in a fresh process each, with a warm page cache: the time to
open, to the first tensor, and until every tensor was summed, and the private memory then. Needs room for about four
files of that size in DIR, and for safetensors' rows the package safetensors.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cstorch
import torch
from cstorch.storage.write import Plan

try:
    import safetensors.torch as safetensors
except ImportError:
    safetensors = None

Tensors = dict[str, torch.Tensor]


def _fsync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def limit(tensors: Tensors, path: Path, allocate: bool = True) -> None:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    if allocate:
        os.posix_fallocate(file, 0, sum(t.nbytes for t in tensors.values()))
    for t in tensors.values():
        left = memoryview(t.flatten().view(torch.uint8).numpy())
        while left:
            left = left[os.write(file, left) :]
    os.close(file)


def ours(tensors: Tensors, path: Path, ahead: bool = True) -> None:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    Plan({"model": tensors}).write(file, ahead=ahead)
    os.close(file)


def savers(tensors: Tensors) -> dict[str, Callable[[Path], None]]:
    found = {
        "limit: fallocate + write": lambda path: limit(tensors, path),
        "plain write": lambda path: limit(tensors, path, allocate=False),
        "cstorch.save": lambda path: ours(tensors, path),
        "cstorch.save, one thread": lambda path: ours(tensors, path, ahead=False),
        "torch.save": lambda path: torch.save({"model": tensors}, path),
    }
    if safetensors is not None:
        found["safetensors"] = lambda path: safetensors.save_file(tensors, path)
    return found


def saves(tensors: Tensors, folder: Path, rounds: int, sync: bool) -> None:
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        turns = list(savers(tensors).items())
        random.shuffle(turns)
        for name, save in turns:
            path = folder / "saved"
            path.unlink(missing_ok=True)
            start = time.perf_counter()
            save(path)
            if sync:
                _fsync(path)
            times.setdefault(name, []).append(time.perf_counter() - start)
    table(times, "limit: fallocate + write")


def table(times: dict[str, list[float]], base: str) -> None:
    for name, values in times.items():
        low, middle = min(values) * 1e3, statistics.median(values) * 1e3
        print(f"  {name:28} {low:8.1f} {middle:8.1f}   x {low / 1e3 / min(times[base]):.2f}")


def memory(key: str) -> float:
    """MiB of this process, of a row of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1024
    raise KeyError(key)


def one_load(kind: str, path: str) -> None:
    """In a process of its own: print the times of one load."""
    first_name = "model.t0" if kind == "safetensors" else "t0"
    gc.collect()  # of torch's own objects, 100 ms: otherwise chance says which peer pays for it
    before = memory("RssAnon")
    start = time.perf_counter()
    if kind == "safetensors":
        file = safetensors.safe_open(path, "pt")
        read, names = file.get_tensor, file.keys()
    elif kind == "torch mmap":
        found = torch.load(path, weights_only=True, mmap=True)["model"]
        read, names = found.__getitem__, list(found)
    else:
        found = cstorch.load(path, check=kind != "cstorch, check=False")["model"]
        read, names = found.__getitem__, list(found)
    opened = time.perf_counter() - start
    read(first_name if first_name in names else names[0])
    first = time.perf_counter() - start
    kept = [read(name) for name in names]
    for t in kept:
        t.sum()
    total = time.perf_counter() - start
    print(json.dumps([opened, first, total, memory("RssAnon") - before]))


def loads(tensors: Tensors, folder: Path, rounds: int) -> None:
    cstorch.save({"model": tensors}, folder / "cstorch")
    torch.save({"model": tensors}, folder / "torch mmap")
    cstorch.save({"model": tensors}, folder / "cstorch, check=False")
    kinds = ["cstorch", "cstorch, check=False", "torch mmap"]
    if safetensors is not None:
        safetensors.save_file(tensors, folder / "safetensors")
        kinds.append("safetensors")
    rows: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        random.shuffle(kinds)
        for kind in kinds:
            command = [sys.executable, __file__, "--one-load", kind, str(folder / kind)]
            rows[kind].append(json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout))
    print("  " + " " * 22 + "   open    first     all (min, ms)   open    first     all (median)   private MiB")
    for kind, values in rows.items():
        columns = list(zip(*values, strict=True))
        low = " ".join(f"{min(c) * 1e3:8.1f}" for c in columns[:3])
        middle = " ".join(f"{statistics.median(c) * 1e3:8.1f}" for c in columns[:3])
        print(f"  {kind:22}{low}       {middle}       {max(columns[3]):8.1f}")
    for kind in rows:
        (folder / kind).unlink()


def one_peak(path: str, mib: int) -> None:
    """In a process of its own: print the memory that a save takes."""
    tensors = made(mib, 200)
    cstorch.save({"a": torch.ones(3)}, path)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    cstorch.save({"model": tensors}, path)
    print(memory("VmHWM") - before)


def one_model(path: str, mib: int) -> None:
    """In a process of its own: print the peak memory of a lazy load into a csx module, in models."""
    n = mib // 64
    with contextlib.redirect_stdout(sys.stderr), cstorch.backend("CSX").device:
        model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, bias=False) for _ in range(n)])
    if not Path(path).exists():
        cstorch.save({f"{i}.weight": torch.randn(1 << 24).view(4096, 4096) for i in range(n)}, path)
        return
    peak, done = [0.0], threading.Event()

    def watch() -> None:  # private memory; mapped pages of the file are the system's and go when they are needed
        while not done.wait(0.002):
            peak[0] = max(peak[0], memory("RssAnon"))

    before = memory("RssAnon")
    watcher = threading.Thread(target=watch)
    watcher.start()
    model.load_state_dict(cstorch.load(path))
    done.set()
    watcher.join()
    print((peak[0] - before) / mib)


def background(tensors: Tensors, folder: Path, rounds: int) -> None:
    blocks, durable = [], []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        handle = cstorch.save({"model": tensors}, folder / "saved", blocking=False)
        blocks.append(time.perf_counter() - start)
        handle.wait()
        durable.append(time.perf_counter() - start)
    table({"blocks (buffer kept)": blocks[1:], "durable": durable[1:]}, "blocks (buffer kept)")


def made(mib: int, count: int) -> Tensors:
    return {f"t{i}": torch.randn((mib << 18) // count) for i in range(count)}


def child(*arguments: Any) -> str:
    command = [sys.executable, __file__, *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--model-mib", type=int, default=8192)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        large, small = made(options.mib, 200), made(10, 10_000)
        print(f"save {options.mib} MiB in 200 tensors: min, median (ms), x limit")
        saves(large, folder, options.rounds, sync=False)
        print("the same with fsync")
        saves(large, folder, options.rounds, sync=True)
        print("save 10,000 tensors of 1 KiB")
        saves(small, folder, options.rounds, sync=False)
        print("background save of the large ones")
        background(large, folder, options.rounds)
        print("extra peak memory of a save, MiB:", child("--one-peak", folder / "saved", options.mib))
        print("load the large ones")
        loads(large, folder, options.rounds)
        print("load 10,000 tensors of 1 KiB")
        loads(small, folder, options.rounds)
        child("--one-model", folder / "model", options.model_mib)
        print(f"lazy load of {options.model_mib} MiB into a csx module, peak in models:", end=" ")
        print(child("--one-model", folder / "model", options.model_mib))


if __name__ == "__main__":
    alone = {"--one-load": one_load, "--one-peak": one_peak, "--one-model": one_model}
    if len(sys.argv) == 4 and sys.argv[1] in alone:
        last: Any = sys.argv[3] if sys.argv[1] == "--one-load" else int(sys.argv[3])
        alone[sys.argv[1]](sys.argv[2], last)
    else:
        main()
