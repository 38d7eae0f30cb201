"""How fast SummaryReader reads scalars, beside TensorBoard's EventAccumulator: `python tests/benchmarks/summaries.py`.

Both read the same file, written by torch's SummaryWriter, and return all events of all tags; crc is checked by both.
"""

from __future__ import annotations

import argparse
import tempfile
import time

from cstorch.utils.tensorboard import SummaryReader, SummaryWriter
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter as TorchWriter

TAGS = ("train/loss", "train/lr", "val/accuracy", "perf/rate")


def timed(function):
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def write(kind, folder, count):
    with kind(folder) as writer:
        for step in range(count // len(TAGS)):
            for offset, tag in enumerate(TAGS):
                writer.add_scalar(tag, step * 0.37 + offset, step)


def ours(folder):
    reader = SummaryReader(folder)
    loaded = time.perf_counter()
    return reader, loaded, {tag: reader.read_scalar(tag) for tag in reader.scalar_names()}


def theirs(folder):
    accumulator = EventAccumulator(folder, size_guidance={"scalars": 0})
    accumulator.Reload()
    return {tag: accumulator.Scalars(tag) for tag in accumulator.Tags()["scalars"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scalars", type=int, default=1_000_000)
    count = parser.parse_args().scalars
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as small:
        few = min(count, 20_000)
        for kind in (TorchWriter, SummaryWriter, SummaryWriter, TorchWriter) * 2:  # which comes first costs
            seconds, _ = timed(lambda kind=kind: write(kind, small, few))
            print(f"add_scalar, {kind.__module__:32} {seconds / few * 1e6:6.1f} us")
        write(SummaryWriter, folder, count)
        start = time.perf_counter()
        seconds, (reader, loaded, values) = timed(lambda: ours(folder))
        again, _ = timed(reader.reload)
        slow, expected = timed(lambda: theirs(folder))
        assert values == expected
        print(f"SummaryReader     {seconds:7.2f} s for {count} scalars, {loaded - start:.2f} s of it reading the file")
        print(f"  reload          {again * 1e3:7.2f} ms with nothing new")
        print(f"EventAccumulator  {slow:7.2f} s, {slow / seconds:.1f} times as long; equal values")


if __name__ == "__main__":
    main()
