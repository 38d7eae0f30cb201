"""Metrics of a dataloader as one HTML page: the report, where the time went, and the rate over the steps."""

from __future__ import annotations

import html
import os
from pathlib import Path

from cstorch.utils.benchmark.report import duration, report, time_shares
from cstorch.utils.benchmark.utils.dataloader import Metrics

_WIDTH, _HEIGHT, _LEFT, _TOP = 860, 260, 70, 20
_STYLE = (
    "body{font:15px system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}"
    "pre{white-space:pre-wrap;background:#f5f5f5;padding:1rem}text{font:12px system-ui,sans-serif;fill:#222}"
    ".local{fill:#7aa6c2}.global{fill:none;stroke:#b03a2e;stroke-width:2}.axis{stroke:#999}.bar{fill:#7aa6c2}"
)


def write_page(metrics: Metrics, path: str | os.PathLike[str]) -> None:
    """Write the page; it needs no network.

    Args:
        metrics: What `benchmark_dataloader` returned.
        path: The file.
    """
    Path(path).write_text(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Dataloader benchmark</title>"
        f"<style>{_STYLE}</style><h1>Dataloader benchmark</h1>"
        f"<h2>Where the time went</h2>{_shares(metrics)}<h2>Steps per second</h2>{_rates(metrics)}"
        f"<h2>Report</h2><pre>{html.escape(report(metrics))}</pre></html>\n"
    )


def _shares(metrics: Metrics) -> str:
    shares = time_shares(metrics)
    most = max(shares.values()) or 1.0
    rows = []
    for number, (name, time) in enumerate(shares.items()):
        y, width = 26 * number, 540 * time / most
        rows.append(
            f"<text x=150 y={y + 16} text-anchor=end>{html.escape(name)}</text>"
            f"<rect class=bar x=160 y={y + 4} width={width:.1f} height=16></rect>"
            f"<text x={168 + width:.1f} y={y + 16}>{duration(time)}</text>"
        )
    return f"<svg viewBox='0 0 {_WIDTH} {26 * len(shares)}' role=img aria-label='time by part'>{''.join(rows)}</svg>"


def _rates(metrics: Metrics) -> str:
    samples = [batch for epoch in metrics.epoch_metrics for batch in epoch.batch_metrics]
    if not samples:
        return "<p>No batch was sampled.</p>"
    most = max(max(batch.local_rate, batch.global_rate) for batch in samples)
    last = max(samples[-1].global_step, 2)

    def place(step: int, rate: float) -> str:
        x = _LEFT + (_WIDTH - _LEFT - 10) * (step - 1) / (last - 1)
        return f"{x:.1f},{_TOP + (_HEIGHT - _TOP) * (1 - rate / most):.1f}"

    points = (place(batch.global_step, batch.local_rate).split(",") for batch in samples)
    dots = "".join(f"<circle class=local cx={x} cy={y} r=3></circle>" for x, y in points)
    line = " ".join(place(batch.global_step, batch.global_rate) for batch in samples)
    bottom = _HEIGHT + 18
    return (
        f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT + 30}' role=img aria-label='steps per second'>"
        f"<line class=axis x1={_LEFT} y1={_TOP} x2={_LEFT} y2={_HEIGHT}></line>"
        f"<line class=axis x1={_LEFT} y1={_HEIGHT} x2={_WIDTH} y2={_HEIGHT}></line>"
        f"<text x={_LEFT - 6} y={_TOP + 5} text-anchor=end>{most:,.1f}</text>"
        f"<text x={_LEFT - 6} y={_HEIGHT} text-anchor=end>0</text>"
        f"<text x={_LEFT} y={bottom}>step 1</text><text x={_WIDTH - 10} y={bottom} text-anchor=end>step {last}</text>"
        f"{dots}<polyline class=global points='{line}'></polyline></svg>"
        "<p>Dots: the rate of one batch, by the time since the batch before. Line: the rate since the start.</p>"
    )
