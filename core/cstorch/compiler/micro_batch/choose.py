"""Chooses the size of micro-batches by the flag: a given one, the largest within the memory limits, or the fastest."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import torch

from cstorch.backends import csx
from cstorch.errors import MemoryLimitError, MicroBatchError
from cstorch.report.limits import check_limits
from cstorch.report.step import StepReport
from cstorch.tracing.program import Program

if TYPE_CHECKING:
    from cstorch.backends.base import Backend
    from cstorch.compiler.micro_batch.tile import Tiles

logger = logging.getLogger("cstorch.compile")

_RUNS = 3
"""So often is a candidate run, after once to warm up; the fastest counts."""


def set_micro_batch(
    program: Program, flag: Any, example: list[torch.Tensor], backend: Backend
) -> tuple[Program, dict[int, float]]:
    """`program` in micro-batches, or itself, as the flag `csx.performance.micro_batch_size` says.

    Args:
        program: A traced step.
        flag: The value of the flag.
        example: Inputs with the shapes, strides and dtypes of the real ones; they are not changed.
        backend: What runs it.

    Returns:
        The program, and for "explore" the seconds that a step takes by the size of its micro-batches.

    Raises:
        MicroBatchError: a size was asked for that is impossible.
    """
    is_limited = csx.debug.act_memory_gi is not None or csx.debug.execute_crd_memory_gi is not None
    if flag is None or (flag == "auto" and not is_limited):
        return program, {}
    from cstorch.compiler.micro_batch.tile import Tiles  # which few programs need

    tiles = Tiles(program)
    if flag == "auto":
        return _within_limits(program, tiles), {}
    if isinstance(flag, int):
        return tiles.program(flag), {}
    return _fastest(program, tiles, flag["explore"] if isinstance(flag, dict) else {}, example, backend)


def _within_limits(program: Program, tiles: Tiles) -> Program:
    """The program as it is, or in the largest micro-batches within the memory limits where it is above them."""
    try:
        check_limits(StepReport.of(program))
        return program
    except MemoryLimitError:
        pass
    except Exception:  # of a graph that a plugin has changed, for example
        return program
    for size in tiles.sizes[1:]:
        try:
            smaller = tiles.program(size)
            check_limits(StepReport.of(smaller))
        except MicroBatchError as error:
            logger.info("micro-batches do not help: %s", error)
            return program
        except MemoryLimitError:
            continue
        logger.info(
            "%r runs in micro-batches of %d of %d samples, within the memory limits", program.name, size, tiles.batch
        )
        return smaller
    return program


def _fastest(
    program: Program, tiles: Tiles, bounds: dict[str, Any], example: list[torch.Tensor], backend: Backend
) -> tuple[Program, dict[int, float]]:
    """The candidate whose step takes the least time on copies of the inputs."""
    lowest, highest = bounds.get("min") or 1, bounds.get("max") or tiles.batch
    sizes = [size for size in tiles.sizes if lowest <= size <= highest]
    reason = ""
    if not sizes:
        reason = f"no size from {lowest} to {highest} divides the batch of {tiles.batch}"
    elif not backend.is_e2e_execution:
        reason = "nothing is executed"
    elif backend.systems is not None:
        reason = "several systems run it together"
    if reason:
        logger.info("the micro-batch size of %r is not explored: %s", program.name, reason)
        return program, {}
    seconds: dict[int, float] = {}
    candidates: dict[int, Program] = {}
    for size in sizes:
        try:
            candidates[size] = tiles.program(size)
            check_limits(StepReport.of(candidates[size]))
        except MicroBatchError as error:
            logger.info("the micro-batch size of %r is not explored: %s", program.name, error)
            break
        except MemoryLimitError:
            continue
        seconds[size] = _seconds(candidates[size], example, backend)
    if not seconds:
        return program, {}
    best = min(seconds, key=seconds.__getitem__)
    said = ", ".join(f"{size}: {1000 * second:.3g} ms" for size, second in seconds.items())
    logger.info("micro-batch sizes of %r were explored: %s; the best is %d", program.name, said, best)
    return candidates[best], seconds


def _seconds(program: Program, example: list[torch.Tensor], backend: Backend) -> float:
    generator = torch.get_rng_state()
    executable = backend.load(program, example)
    assert executable is not None
    try:
        times = []
        for _ in range(1 + _RUNS):
            inputs = [t.clone() for t in example]
            start = time.perf_counter()
            executable(inputs)
            times.append(time.perf_counter() - start)
        return min(times[1:])
    finally:
        torch.set_rng_state(generator)
