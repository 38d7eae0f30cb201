"""Trains the benchmarks' workloads in JAX: one jitted step with AdamW, whose state is donated.

It runs in a process of its own, because JAX and PyTorch would share threads and allocator: `JaxPeer` is the end in the
benchmark, `serve` the one in the process. The Python with JAX may be another than the benchmark's; it needs no torch.
"""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

HOW_TO_INSTALL = (
    "JAX is left out: it is not installed. `pip install jax jaxlib`, here or in an environment whose Python is "
    "given as --jax-python PATH."
)
MODELS = ("tiny", "mlp", "cnn", "gpt-s", "gpt-m", "resnet", "dlrm")
"""The workloads that are written in JAX, below."""


def has_jax(python: str) -> bool:
    """Whether the interpreter `python` can import JAX."""
    return subprocess.run([python, "-c", "import jax"], capture_output=True).returncode == 0


class JaxPeer:
    """A workload in a process with JAX.

    Args:
        python: Its interpreter.
        name: The workload.
        arrays: The model's first parameters and buffers, by name, as numpy arrays; parameters first.
        parameters: The names of the parameters.
        batch: Inputs and labels.
        threads: Threads that it may use.
    """

    def __init__(
        self,
        python: str,
        name: str,
        arrays: dict[str, np.ndarray],
        parameters: list[str],
        batch: tuple[np.ndarray, np.ndarray],
        threads: int,
    ) -> None:
        flags = f"--xla_cpu_multi_thread_eigen={'false' if threads == 1 else 'true'}"
        self._process = subprocess.Popen(
            [python, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        )
        self._ask((name, arrays, parameters, batch, threads))

    def losses(self, steps: int) -> list[float]:
        """Take so many steps; the loss of each."""
        found: list[float] = self._ask(("losses", steps))
        return found

    def run(self, steps: int) -> float:
        """Take so many steps; seconds taken."""
        seconds: float = self._ask(("run", steps))
        return seconds

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)

    def _ask(self, question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump(question, self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)


def serve(requests: Any, answers: Any) -> None:
    """Answer the requests of a `JaxPeer` until it closes."""
    name, arrays, names, (x, y), threads = pickle.load(requests)
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cpus[-threads:])  # XLA makes a thread for each processor that it may use

    import jax
    import jax.numpy as jnp

    parameters = {n: jnp.asarray(arrays[n]) for n in names}
    buffers = {n: jnp.asarray(value) for n, value in arrays.items() if n not in parameters}
    zeros = {n: jnp.zeros_like(value) for n, value in parameters.items()}
    state = (parameters, buffers, zeros, {n: jnp.copy(value) for n, value in zeros.items()}, jnp.float32(0))
    step = jax.jit(make_step(model(name)), donate_argnums=0)
    x, y = jnp.asarray(x), jnp.asarray(y)

    def answer(value: Any) -> None:
        pickle.dump(value, answers)
        answers.flush()

    answer("ready")
    while True:
        try:
            what, steps = pickle.load(requests)
        except EOFError:
            return
        losses, start = [], time.perf_counter()
        for _ in range(steps):
            state, loss = step(state, x, y)
            if what == "losses":
                losses.append(float(loss))
        jax.block_until_ready((state, loss))
        answer(losses or time.perf_counter() - start)


def make_step(apply: Callable[..., Any], lr: float = 1e-4, decay: float = 1e-2) -> Callable[..., Any]:
    """A training step of `apply`, `(parameters, buffers, x) -> (logits, new buffers)`, with PyTorch's AdamW."""
    import jax
    import jax.numpy as jnp

    def loss_of(parameters: Any, buffers: Any, x: Any, y: Any) -> Any:
        logits, changed = apply(parameters, buffers, x)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)
        return -chosen.mean(), changed

    def step(state: Any, x: Any, y: Any) -> Any:
        parameters, buffers, first, second, count = state
        (loss, buffers), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters, buffers, x, y)
        count = count + 1
        first = {n: 0.9 * m + 0.1 * gradients[n] for n, m in first.items()}
        second = {n: 0.999 * v + 0.001 * gradients[n] ** 2 for n, v in second.items()}
        rate, root = lr / (1 - 0.9**count), jnp.sqrt(1 - 0.999**count)
        parameters = {
            n: p * (1 - lr * decay) - rate * first[n] / (jnp.sqrt(second[n]) / root + 1e-8)
            for n, p in parameters.items()
        }
        return (parameters, buffers, first, second, count), loss

    return step


def model(name: str) -> Callable[..., Any]:
    """The model of a workload: `(parameters, buffers, x) -> (logits, new buffers)`."""
    import jax
    import jax.numpy as jnp

    def linear(p: Any, name: str, x: Any) -> Any:
        made = x @ p[f"{name}.weight"].T
        return made + p[f"{name}.bias"] if f"{name}.bias" in p else made

    def layer_norm(p: Any, name: str, x: Any) -> Any:
        x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * p[f"{name}.weight"] + p[f"{name}.bias"]

    def conv(p: Any, name: str, x: Any, stride: int = 1, padding: int = 1) -> Any:
        weight = p[f"{name}.weight"].transpose(2, 3, 1, 0)
        sides = [(padding, padding)] * 2
        made = jax.lax.conv_general_dilated(x, weight, (stride,) * 2, sides, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return made + p[f"{name}.bias"] if f"{name}.bias" in p else made

    def batch_norm(p: Any, b: dict[str, Any], name: str, x: Any) -> Any:
        mean, variance, count = x.mean((0, 1, 2)), x.var((0, 1, 2)), x[..., 0].size
        for buffer, now in (("running_mean", mean), ("running_var", variance * count / (count - 1))):
            b[f"{name}.{buffer}"] = 0.9 * b[f"{name}.{buffer}"] + 0.1 * now
        b[f"{name}.num_batches_tracked"] = b[f"{name}.num_batches_tracked"] + 1
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]

    def tiny(p: Any, b: Any, x: Any) -> Any:
        return x @ p["weight"].T + p["bias"], b

    def mlp(p: Any, b: Any, x: Any) -> Any:
        for i in range(6):
            x = layer_norm(p, str(3 * i + 2), jax.nn.gelu(linear(p, str(3 * i), x), approximate=False))
        return linear(p, "18", x), b

    def cnn(p: Any, b: Any, x: Any) -> Any:
        b, x = dict(b), x.transpose(0, 2, 3, 1)
        for i in (0, 4, 8):
            x = jax.nn.relu(batch_norm(p, b, str(i + 1), conv(p, str(i), x)))
            n, h, w, c = x.shape
            x = x.reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))
        return linear(p, "13", x.transpose(0, 3, 1, 2).reshape(len(x), -1)), b

    def gpt(layers: int, heads: int) -> Any:
        def apply(p: Any, b: Any, x: Any) -> Any:
            n, t = x.shape
            x = p["tokens.weight"][x] + p["positions.weight"][:t]
            causal = jnp.tril(jnp.ones((t, t), bool))
            for i in range(layers):
                at = f"blocks.{i}."
                q, k, v = (
                    linear(p, at + "qkv", layer_norm(p, at + "norm1", x))
                    .reshape(n, t, 3, heads, -1)
                    .transpose(2, 0, 3, 1, 4)
                )
                scores = jnp.where(causal, q @ k.swapaxes(2, 3) / q.shape[-1] ** 0.5, -jnp.inf)
                attended = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(n, t, -1)
                x = x + linear(p, at + "out", attended)
                hidden = jax.nn.gelu(linear(p, at + "up", layer_norm(p, at + "norm2", x)), approximate=False)
                x = x + linear(p, at + "down", hidden)
            x = layer_norm(p, "norm", x) @ p["tokens.weight"].T
            return x.reshape(n * t, -1), b

        return apply

    def resnet(p: Any, b: Any, x: Any) -> Any:
        b = dict(b)
        x = jax.nn.relu(batch_norm(p, b, "1", conv(p, "0", x.transpose(0, 2, 3, 1))))
        for i in range(3, 9):
            at = f"{i}."
            stride = 2 if f"{at}across.weight" in p else 1
            across = conv(p, at + "across", x, stride, 0) if stride == 2 else x
            x = jax.nn.relu(batch_norm(p, b, at + "norm1", conv(p, at + "first", x, stride)))
            x = jax.nn.relu(across + batch_norm(p, b, at + "norm2", conv(p, at + "second", x)))
        return linear(p, "11", x.mean((1, 2))), b

    def dlrm(p: Any, b: Any, x: Any) -> Any:
        rows = jnp.stack([p[f"tables.{i}.weight"][x[:, i]] for i in range(8)], 1)
        above = np.triu_indices(8, 1)
        products = (rows @ rows.swapaxes(1, 2))[:, above[0], above[1]]
        top = jnp.concatenate([rows.reshape(len(x), -1), products], 1)
        return linear(p, "top.2", jax.nn.relu(linear(p, "top.0", top))), b

    known = {"tiny": tiny, "mlp": mlp, "cnn": cnn, "gpt-s": gpt(4, 4), "gpt-m": gpt(6, 6), "resnet": resnet}
    return {**known, "dlrm": dlrm}[name]


if __name__ == "__main__":
    answers = io.FileIO(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed does not mix with the answers
    serve(sys.stdin.buffer, io.BufferedWriter(answers))
