"""Metrics of a dataloader as a text that a person reads, the conclusion first."""

from __future__ import annotations

from typing import Any

import numpy as np

from cstorch.utils.benchmark.utils.dataloader import EpochMetrics, Metrics

_BAR = 30


def report(metrics: Metrics) -> str:
    """The text.

    Args:
        metrics: What `benchmark_dataloader` returned.
    """
    lines = [*_conclusion(metrics), ""]
    shares = time_shares(metrics)
    whole = sum(shares.values()) or 1.0
    lines.append("Where the time went")
    for name, seconds in shares.items():
        part = seconds / whole
        lines.append(f"  {name:22} {duration(seconds):>10} {part:6.1%}  {'#' * round(part * _BAR)}".rstrip())
    lines += ["", *_epochs(metrics), "", "Batches"]
    for spec, found in metrics.batch_specs.items():
        times = f"{found.count} times, first at step {found.first_epoch_step} of epoch {found.first_epoch}"
        lines.append(f"  {spec.structure}: {times}")
    lines += _activities(metrics)
    return "\n".join(lines) + "\n"


def time_shares(metrics: Metrics) -> dict[str, float]:
    """Where the time went, in seconds: build, iterators, first batches, steady state, slow batches."""
    epochs = metrics.epoch_metrics
    first = sum(seconds(epoch.batch_times.first) for epoch in epochs)
    slow = sum(seconds(epoch.batch_times.slow_time) for epoch in epochs)
    iteration = sum(seconds(epoch.iteration_time) for epoch in epochs)
    return {
        "build": seconds(metrics.dataloader_build_time),
        "iterators": sum(seconds(epoch.iterator_creation) for epoch in epochs),
        "first batch of epochs": first,
        "steady state": max(iteration - first - slow, 0.0),
        "slow batches (tail)": slow,
    }


def seconds(time: np.timedelta64) -> float:
    """A numpy time in seconds."""
    return float(time / np.timedelta64(1, "ns")) / 1e9


def duration(time: float) -> str:
    """Seconds with a fitting unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(time) >= size:
            return f"{time / size:.2f} {unit}"
    return f"{time * 1e9:.0f} ns"


def _conclusion(metrics: Metrics) -> list[str]:
    lines = ["Interrupted: what follows is of the part that was measured."] if metrics.is_partial else []
    if not metrics.total_steps:
        return [*lines, "The dataloader gave no batch: look at its dataset, its sampler and drop_last."]
    steady = steady_state(metrics)
    rate = f"{metrics.global_rate:.1f} steps/s"
    if metrics.global_sample_rate is not None:
        rate += f", {metrics.global_sample_rate:.1f} samples/s"
    lines.append(f"{rate} over {metrics.total_steps} steps in {duration(seconds(metrics.total_time))}.")
    lines.append(
        f"Fast enough for training steps that take {duration(steady)} or longer: shorter ones wait for this dataloader."
    )
    return [*lines, *_advice(metrics)]


def steady_state(metrics: Metrics) -> float:
    """The time from batch to batch once an epoch has begun, in seconds; slow batches included."""
    epochs = metrics.epoch_metrics
    first = sum(seconds(epoch.batch_times.first) for epoch in epochs)
    others = sum(max(epoch.total_steps - 1, 0) for epoch in epochs)
    if not others:
        return first / max(metrics.total_steps, 1)
    return (sum(seconds(epoch.iteration_time) for epoch in epochs) - first) / others


def _advice(metrics: Metrics) -> list[str]:
    shares = time_shares(metrics)
    whole = sum(shares.values())
    found = []
    if shares["slow batches (tail)"] > 0.2 * whole:
        slow = sum(epoch.batch_times.slow_count for epoch in metrics.epoch_metrics)
        found.append(
            f"{slow} batches took over twice the median and {shares['slow batches (tail)'] / whole:.0%} of the time: "
            "the loader stalls now and then. Worker processes (num_workers), or more of them, and a larger "
            "prefetch_factor level it out."
        )
    if shares["iterators"] + shares["first batch of epochs"] > 0.2 * whole and metrics.total_steps > 1:
        found.append(
            "Starting epochs takes over a fifth of the time. With persistent_workers=True worker processes stay from "
            "epoch to epoch."
        )
    if shares["build"] > 0.5 * whole:
        found.append("Most of the time goes into input_fn itself, before the first epoch.")
    if len(metrics.batch_specs) > 1:
        found.append(
            f"Batches have {len(metrics.batch_specs)} shapes or structures; each becomes a program of its own on CSX. "
            "drop_last=True drops the short one at the end of an epoch; padding makes the others alike."
        )
    return found


def _epochs(metrics: Metrics) -> list[str]:
    head = ("epoch", "steps", "steps/s", "iterator", "first", "median", "p90", "p99", "slowest")
    rows = [head, *(_row(number, epoch) for number, epoch in enumerate(metrics.epoch_metrics, 1))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _row(number: int, epoch: EpochMetrics) -> tuple[str, ...]:
    total = seconds(epoch.total_time)
    times = epoch.batch_times
    shown = (epoch.iterator_creation, times.first, times.median, times.p90, times.p99, times.slowest)
    rate = f"{epoch.total_steps / total:.1f}" if total else "-"
    return (str(number), str(epoch.total_steps), rate, *(duration(seconds(time)) for time in shown))


def _activities(metrics: Metrics) -> list[str]:
    """First, largest and last value of each activity."""
    columns: dict[str, list[float]] = {}
    for epoch in metrics.epoch_metrics:
        for batch in epoch.batch_metrics:
            for activity, value in batch.profile_activities.items():
                for name, number in _numbers(activity, value):
                    columns.setdefault(name, []).append(number)
    if not columns:
        return []
    lines = ["", f"  {'activity':28} {'first':>12} {'largest':>12} {'last':>12}"]
    return lines + [f"  {name:28} {v[0]:12.2f} {max(v):12.2f} {v[-1]:12.2f}" for name, v in columns.items()]


def _numbers(name: str, value: Any) -> list[tuple[str, float]]:
    if isinstance(value, dict):
        return [found for key, part in value.items() for found in _numbers(f"{name}.{key}", part)]
    return [(name, float(value))] if isinstance(value, (int, float)) else []
