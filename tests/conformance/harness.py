"""Runs conformance items in child processes: each within a time limit, a crash costs one item.

An item is a name and a function. What the function raises says how it went: nothing is a pass, AssertionError a
wrong result, TraceError a refusal, SkipTest that plain PyTorch cannot do it either, anything else a failure.
"""

from __future__ import annotations

import contextlib
import fnmatch
import multiprocessing
import os
import signal
import time
import unittest
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cstorch
import torch
from cstorch.compiler.compile import interpreting
from cstorch.errors import TraceError

HERE = str(Path(__file__).parent)
Item = tuple[str, Callable[[], None]]
SAMPLES = int(os.environ.get("CONFORMANCE_SAMPLES", "0")) or None
"""At most so many samples of an operator or a module; all of them by default."""

OUTCOMES = ("pass", "refused", "skipped", "unclear", "failed", "wrong", "crashed", "hung")
"""`unclear` is a refusal that does not name the line of the step that asked for it."""


@dataclass(frozen=True)
class Result:
    """How one item went, with the first line of the reason."""

    name: str
    outcome: str
    reason: str = ""
    seconds: float = 0.0


def outcome_of(run: Callable[[], None]) -> tuple[str, str]:
    """Run an item here and say how it went."""
    if not interpreting():  # a compiled program then draws the numbers that eager PyTorch draws
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        run()
    except unittest.SkipTest as error:
        return "skipped", str(error)
    except TraceError as error:
        return ("refused" if HERE in str(error) else "unclear"), str(error)
    except AssertionError as error:
        return "wrong", str(error)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    return "pass", ""


def check_all(samples: Iterable[Any], check: Callable[[int, Any], None]) -> None:
    """Check every sample of an item: what is wrong counts at once, a refusal when nothing is wrong.

    Args:
        samples: The samples.
        check: Gets the number of a sample and the sample; raises as an item does.
    """
    tried, refusals = 0, []
    for number, sample in enumerate(samples):
        try:
            check(number, sample)
            tried += 1
        except unittest.SkipTest:
            continue
        except TraceError as error:
            refusals.append(error)
        except AssertionError as error:
            raise AssertionError(f"sample {number}: {error}") from None
    if refusals:
        raise refusals[0]
    if not tried:
        raise unittest.SkipTest("plain PyTorch runs none of the samples")


def _serve(items: list[Item], connection: Any, folder: str) -> None:
    """A child: receives positions of items, answers with outcomes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    cstorch.backend("CSX", compile_dir=folder)
    with contextlib.suppress(EOFError):
        while True:
            outcome, reason = outcome_of(items[connection.recv()][1])
            connection.send((outcome, reason.strip()[:2000]))


class _Child:
    def __init__(self, items: list[Item], folder: str) -> None:
        self._items, self._folder = items, folder
        self._process: Any = None

    def run(self, position: int, limit: float) -> Result:
        name = self._items[position][0]
        if self._process is None:
            context = multiprocessing.get_context("fork")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(self._items, theirs, self._folder), daemon=True)
            self._process.start()
            theirs.close()
        start = time.perf_counter()
        try:
            self._connection.send(position)
            if not self._connection.poll(limit):
                self.close()
                return Result(name, "hung", f"not done within {limit:.0f} s", limit)
            outcome, reason = self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            self.close()
            return Result(name, "crashed", f"the process ended with exit code {code}")
        return Result(name, outcome, reason, time.perf_counter() - start)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None


def run_all(items: list[Item], folder: str, limit: float = 120, workers: int | None = None) -> Iterator[Result]:
    """Run `items`, yielding each result when it is there.

    Args:
        items: What to run.
        folder: The compile cache.
        limit: Seconds for one item.
        workers: Child processes; one for each processor by default.
    """
    count = workers or os.cpu_count() or 1
    children = [_Child(items, folder) for _ in range(count)]
    free = list(children)

    def one(position: int) -> Result:
        child = free.pop()
        try:
            return child.run(position, limit)
        finally:
            free.append(child)

    try:
        with ThreadPoolExecutor(count) as pool:
            yield from pool.map(one, range(len(items)))
    finally:
        for child in children:
            child.close()


def expectation(name: str, expected: dict[str, tuple[str, str]]) -> tuple[str, str] | None:
    """The outcome and reason that `expected` has for an item; its keys are patterns of names."""
    for pattern, entry in expected.items():
        if fnmatch.fnmatchcase(name, pattern):
            return entry
    return None


def surprises(results: list[Result], expected: dict[str, tuple[str, str]]) -> list[Result]:
    """The results that are neither a pass nor what was expected."""
    found = []
    for result in results:
        known = expectation(result.name, expected)
        allowed = {"pass", "skipped"} if known is None else {"pass", "skipped", known[0]}
        if result.outcome not in allowed:
            found.append(result)
    return found
