"""`check`: runs a conformance program on a backend and compares with eager PyTorch."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import torch

from cstorch.backend import backend as make_backend
from cstorch.testing.programs import PROGRAMS
from cstorch.testing.run import BackendRun, EagerRun, contents


def check(program: str, backend: str, *, rtol: float = 1e-4, atol: float = 1e-5, seed: int = 0, **options: Any) -> None:
    """Run one program in eager PyTorch on the cpu and on a backend, and compare all that they see and leave.

    The program trains for several steps with changing hyperparameters. What it sees at each step, its weights,
    buffers and optimizer state are compared.

    Args:
        program: A name of `PROGRAMS`.
        backend: The backend's name, as for `cstorch.backend`. There must be no current backend.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        seed: Given to `torch.manual_seed` before each of the runs.
        **options: Passed to `cstorch.backend`.

    Raises:
        AssertionError: the backend's numbers are not the expected ones; the message names the first that differs.
        ValueError: there is no such program or backend.
    """
    if program not in PROGRAMS:
        raise ValueError(f"there is no conformance program {program!r}; there are {', '.join(PROGRAMS)}.")
    expected = _train(program, EagerRun(), seed)
    with make_backend(backend, **options):
        found = _train(program, BackendRun(), seed)
    _compare(program, found, expected, rtol, atol)


def _train(program: str, run: EagerRun, seed: int) -> Any:
    torch.manual_seed(seed)
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.filterwarnings("ignore", message="the step .* is traced again")
        stack.enter_context(torch.random.fork_rng(devices=[]))
        left = PROGRAMS[program](run)
        return {"seen": run.seen, "left": contents(left)}


def _compare(where: str, found: Any, expected: Any, rtol: float, atol: float) -> None:
    if isinstance(expected, dict) and isinstance(found, dict):
        assert list(found) == list(expected), f"{where}: found the entries {list(found)}, expected {list(expected)}"
        for key, value in expected.items():
            _compare(f"{where}.{key}", found[key], value, rtol, atol)
    elif isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)):
        assert len(found) == len(expected), f"{where}: found {len(found)} values, expected {len(expected)}"
        for index, value in enumerate(expected):
            _compare(f"{where}[{index}]", found[index], value, rtol, atol)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(
            found, expected, rtol=rtol, atol=atol, msg=lambda text: f"{where} is not as in eager PyTorch: {text}"
        )
    elif isinstance(expected, float):
        assert abs(found - expected) <= atol + rtol * abs(expected), f"{where}: found {found}, expected {expected}"
    else:
        assert found == expected, f"{where}: found {found!r}, expected {expected!r}"
