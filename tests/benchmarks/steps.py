"""Times a training step with AdamW: csx through the executor, beside eager PyTorch, torch.compile and JAX.

    python tests/benchmarks/steps.py [workload ...] [--peers eager jax ...] [--jax-python PATH] [--rounds 9]

The peers take turns, round after round, and must compute the same losses in their first steps; the table shows the
median time of a step, or with `--minima` the shortest. `bare` is the executable alone, called with the same inputs
again and again. `executor us` is the processor's time that the executor and the traced step take by themselves: the
same loop with an executable that returns at once. The last column is csx through the executor against the best peer.

The peers: eager PyTorch with AdamW as it is and fused, torch.compile of the model (with fused AdamW), of model and
optimizer, the same with mode="max-autotune" (minutes of compiling), and a jitted step of JAX with donated state, where
JAX is installed (`pip install jax jaxlib`, here or in another environment whose Python is given).
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cstorch
import jax_peer
import torch
import torch.nn.functional as F
from training import FIRST, Training
from workloads import WORKLOADS, Workload

Steps = Callable[[int], float]
"""Runs so many steps; seconds taken."""


@dataclass(frozen=True)
class Peer:
    """What is timed beside csx.

    Attributes:
        losses: Of its first steps.
        run: Takes more of them.
        close: Ends it.
    """

    losses: list[float]
    run: Steps
    close: Callable[[], None] = lambda: None


def pytorch(workload: Workload, fused: bool = False, model_mode: str = "", optimizer_mode: str = "") -> Peer:
    """PyTorch, eager or compiled in these modes of torch.compile."""
    torch.manual_seed(0)
    model: Any = workload.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    x, y = workload.batch()
    update = optimizer.step
    if model_mode:
        model = torch.compile(model, mode=model_mode)
    if optimizer_mode:
        update = torch.compile(optimizer.step, mode=optimizer_mode)

    def step() -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        update()
        return loss

    def run(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            step()
        return time.perf_counter() - start

    return Peer([step().item() for _ in range(FIRST)], run)


def jax(workload: Workload, python: str) -> Peer:
    """JAX in a process of its own."""
    torch.manual_seed(0)
    model = workload.model()
    x, y = workload.batch()
    parameters = [name for name, _ in model.named_parameters()]
    arrays = {n: t.detach().numpy() for n, t in (*model.named_parameters(), *model.named_buffers())}
    process = jax_peer.JaxPeer(
        python, workload.name, arrays, parameters, (x.numpy(), y.numpy()), torch.get_num_threads()
    )
    return Peer(process.losses(FIRST), process.run, process.close)


PEERS: dict[str, Callable[[Workload], Peer]] = {
    "eager": lambda w: pytorch(w),
    "fused": lambda w: pytorch(w, fused=True),
    "compile": lambda w: pytorch(w, fused=True, model_mode="default"),
    "both": lambda w: pytorch(w, model_mode="default", optimizer_mode="default"),
    "autotune": lambda w: pytorch(w, model_mode="max-autotune", optimizer_mode="max-autotune"),
}


def csx(workload: Workload) -> dict[str, Peer]:
    cstorch.backend("CSX")
    training = Training(workload)
    bound = training.bound
    inputs = bound.inputs(list(training.batch), [])

    def run(steps: int) -> float:
        start = time.perf_counter()
        training.run(steps)
        return time.perf_counter() - start

    def bare(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            bound.executable(inputs)
        return time.perf_counter() - start

    def overhead(steps: int) -> float:
        executable = bound.executable
        outputs = executable(inputs)
        bound.executable = lambda inputs: outputs
        try:
            start = time.process_time()
            training.run(steps)
            return time.process_time() - start
        finally:
            bound.executable = executable

    return {
        "csx": Peer(training.losses, run, cstorch.backend().close),
        "bare": Peer(training.losses, bare),
        "executor": Peer(training.losses, overhead),
    }


def check(losses: dict[str, list[float]]) -> None:
    """Raise where a peer does not compute the losses of csx."""
    for name, found in losses.items():
        if not all(math.isclose(a, b, rel_tol=2e-3) for a, b in zip(found, losses["csx"], strict=True)):
            raise SystemExit(
                f"{name} trains something else: its first losses are {found}, those of csx {losses['csx']}"
            )


def measure(workload: Workload, chosen: list[str], options: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of a step, by peer."""
    peers = csx(workload)
    try:
        for name in chosen:
            if name != "jax":
                peers[name] = PEERS[name](workload)
            elif workload.name in jax_peer.MODELS:
                peers[name] = jax(workload, options.jax_python)
        check({name: peer.losses for name, peer in peers.items()})
        for peer in peers.values():
            peer.run(max(2, workload.steps // 3))
        times: dict[str, list[float]] = {name: [] for name in peers}
        for _ in range(options.rounds):
            for name, peer in peers.items():
                steps = 1000 if name == "executor" else workload.steps
                times[name].append(peer.run(steps) / steps * 1e3)
    finally:
        for peer in peers.values():
            peer.close()
    typical = min if options.minima else statistics.median
    return {name: typical(found) for name, found in times.items()}


def main() -> None:
    names = [workload.name for workload in WORKLOADS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=names, metavar="workload", help=", ".join(names))
    parser.add_argument("--peers", nargs="+", choices=[*PEERS, "jax"], default=[*PEERS, "jax"])
    parser.add_argument("--jax-python", default=sys.executable, help="the interpreter that has JAX")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--minima", action="store_true", help="the shortest times, for a machine that does other work")
    options = parser.parse_args()
    unknown = set(options.workloads) - set(names)
    if unknown:
        parser.error(f"no such workload: {', '.join(unknown)}; there are {', '.join(names)}")
    peers = options.peers
    if "jax" in peers and not jax_peer.has_jax(options.jax_python):
        print(jax_peer.HOW_TO_INSTALL)
        peers = [name for name in peers if name != "jax"]

    warnings.simplefilter("ignore")
    kind = "minimum" if options.minima else "median"
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; {kind} ms a step of {options.rounds} rounds")
    columns = (*peers, "csx", "bare", "executor us", "best peer/csx")
    print(" " * 8 + "".join(f"{name:>14}" for name in columns))
    for workload in (w for w in WORKLOADS if w.name in options.workloads):
        t = measure(workload, peers, options)
        cells = [f"{t[name]:14.4f}" if name in t else f"{'-':>14}" for name in (*peers, "csx", "bare")]
        best = min(t[name] for name in peers if name in t)
        print(f"{workload.name:8}{''.join(cells)}{t['executor'] * 1e3:14.2f}{best / t['csx']:14.2f}", flush=True)


if __name__ == "__main__":
    main()
