"""The report of a run as one HTML page that needs no network: warnings first, then each program in pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from pathlib import PurePath

from cstorch.report.entry import Entry
from cstorch.report.graph import source_of
from cstorch.report.step import Share, StepReport
from cstorch.sizes import count_text, flops_text, size_text

_WIDTH, _HEIGHT, _POINTS, _LINES = 900, 170, 300, 20
_COLOURS = ("#3f7cac", "#e08e45", "#5aa469", "#b5577c", "#8a79c7", "#c9b037", "#4fb0ae", "#a05a2c", "#7f8c8d")
_STYLE = """
:root{--fg:#1d2733;--dim:#66727f;--bg:#f4f6f8;--card:#fff;--edge:#dde3e8;--warn:#b35900;--bar:#3f7cac}
@media(prefers-color-scheme:dark){:root{--fg:#e4e9ee;--dim:#97a3af;--bg:#12171c;--card:#1b222a;--edge:#303a44;
--warn:#f0a04b;--bar:#6aa5d4}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);max-width:62rem;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.6rem;margin:0}h2{font-size:1.25rem;margin:0}h3{font-size:.95rem;margin:1.6rem 0 .4rem}
p{margin:.3rem 0}.dim{color:var(--dim)}
section,.warn,.fine{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:1.2rem 1.4rem;
margin:1.2rem 0}
.warn{border-left:5px solid var(--warn)}.fine{border-left:5px solid #5aa469}.warn ul{margin:.3rem 0;padding-left:1.2rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:.7rem;margin:1rem 0}
.tile{border:1px solid var(--edge);border-radius:8px;padding:.5rem .8rem}
.tile b{display:block;font-size:1.1rem;white-space:nowrap;font-variant-numeric:tabular-nums}
table{border-collapse:collapse;width:100%}td,th{padding:.2rem .6rem .2rem 0;text-align:left;vertical-align:top}
th{font-weight:500;color:var(--dim)}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
tr+tr td{border-top:1px solid var(--edge)}code,pre{font:12.5px/1.5 ui-monospace,monospace}
td code{overflow-wrap:anywhere}
pre{overflow:auto;max-height:30rem;background:var(--bg);border-radius:8px;padding:.8rem}
.strip{display:flex;height:1.1rem;border-radius:5px;overflow:hidden;margin:.4rem 0}
.dot{display:inline-block;width:.7rem;height:.7rem;border-radius:3px;margin-right:.45rem}
summary{cursor:pointer;margin-top:1rem;color:var(--dim)}svg{width:100%;height:auto}
svg text{font:12px system-ui,sans-serif;fill:var(--dim)}.area{fill:var(--bar);fill-opacity:.35;stroke:var(--bar)}
.peak{stroke:var(--warn);stroke-dasharray:4 3}
""".replace("\n", "")


def page(entries: list[Entry], findings: Iterable[str], refused: Iterable[str], title: str) -> str:
    """The page.

    Args:
        entries: The programs.
        findings: Portability warnings.
        refused: What steps did that was refused.
        title: Which run it is, and under which versions.
    """
    findings, refused = list(findings), list(refused)
    lead = f"{count_text(len(entries), 'program')}, {count_text(len(findings), 'portability warning')}"
    return "".join(
        (
            "<!doctype html><html lang=en><meta charset=utf-8>"
            "<meta name=viewport content='width=device-width,initial-scale=1'><title>Compile report</title>"
            f"<style>{_STYLE}</style><h1>Compile report</h1><p class=dim>{lead}. {escape(title)}</p>",
            _box("warn", "Refused", refused) if refused else "",
            _box("warn", "What another system may not take", findings)
            if findings
            else "<div class=fine>Nothing was found that another system would not take.</div>",
            *(_program(entry) for entry in entries),
            "</html>\n",
        )
    )


def _box(kind: str, title: str, items: list[str]) -> str:
    return f"<div class={kind}><b>{title}</b><ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul></div>"


def _program(entry: Entry) -> str:
    report = entry.report
    made = str(entry.made) if entry.made is not None else "not compiled"
    tiles = {
        "operations": f"{sum(report.operations.values()):,}",
        "a step": flops_text(report.flops),
        "parameters": size_text(report.parameter_bytes),
        "other state": size_text(report.state_bytes - report.parameter_bytes),
        "activations, at most": size_text(report.activation_bytes),
        "memory, estimated peak": size_text(report.peak_bytes),
    }
    why = f"Traced for {report.why}. " if report.why else ""
    return "".join(
        (
            f"<section><h2>{escape(report.step)} <span class=dim>program {entry.number}</span></h2>"
            f"<p class=dim>{escape(why)}{escape(made[:1].upper() + made[1:])}.</p><div class=tiles>",
            *(f"<div class=tile><b>{value}</b><span class=dim>{name}</span></div>" for name, value in tiles.items()),
            f"</div><h3>What it does</h3>{_kinds(report)}",
            f"<h3>Memory of activations and gradients over the step</h3>{_course(report)}",
            f"<h3>Where it comes from</h3>{_lines(report)}",
            f"<h3>What goes in and out</h3>{_table(_traffic(report))}",
            f"<details><summary>Holds while ({len(report.guards)})</summary>{_list(report.guards)}</details>",
            f"<details><summary>The graph, {escape(entry.graph_file)}</summary>"
            f"<pre>{escape(entry.graph)}</pre></details></section>",
        )
    )


def _kinds(report: StepReport) -> str:
    colours = dict(zip(report.kinds, _COLOURS * (1 + len(report.kinds) // len(_COLOURS)), strict=False))
    strips = []
    for name, of in (("operations", "operations"), ("FLOPs", "flops")):
        total = sum(getattr(share, of) for share in report.kinds.values())
        parts = "".join(
            f"<div style='width:{100 * getattr(share, of) / total:.2f}%;background:{colours[kind]}' "
            f"title='{kind}: {getattr(share, of):,}'></div>"
            for kind, share in report.kinds.items()
            if total and getattr(share, of)
        )
        if parts:
            strips.append(f"<span class=dim>{name}</span><div class=strip>{parts}</div>")
    rows = (
        f"<tr><td><span class=dot style='background:{colours[kind]}'></span>{kind}</td>{_numbers(share)}</tr>"
        for kind, share in report.kinds.items()
    )
    return f"{''.join(strips)}<table><tr><th>kind</th>{_HEADS}</tr>{''.join(rows)}</table>"


_HEADS = "<th class=n>operations</th><th class=n>FLOPs</th><th class=n>new memory</th>"


def _numbers(share: Share) -> str:
    flops = flops_text(share.flops) if share.flops else ""
    made = size_text(share.made_bytes) if share.made_bytes else ""
    return f"<td class=n>{share.operations:,}</td><td class=n>{flops}</td><td class=n>{made}</td>"


def _lines(report: StepReport) -> str:
    first = sorted(report.lines.items(), key=lambda item: (-item[1].flops, -item[1].made_bytes))
    rows = []
    for line, share in first[:_LINES]:
        name = PurePath(line).name
        rows.append(
            f"<tr><td><span class=dim title='{escape(line, quote=True)}'>{escape(name)}</span><br>"
            f"<code>{escape(source_of(line)[:120])}</code></td>{_numbers(share)}</tr>"
        )
    rest = len(first) - _LINES
    more = f"<p class=dim>and {count_text(rest, 'other line')}</p>" if rest > 0 else ""
    return f"<table><tr><th>line</th>{_HEADS}</tr>{''.join(rows)}</table>{more}"


def _course(report: StepReport) -> str:
    course, peak = report.activations.course, report.activations.peak
    if not peak:
        return "<p class=dim>None.</p>"
    per = max(1, -(-len(course) // _POINTS))
    heights = [max(course[start : start + per]) for start in range(0, len(course), per)]
    across = (_WIDTH - 10) / max(1, len(heights) - 1)
    points = [
        f"{5 + across * i:.1f},{_HEIGHT - (_HEIGHT - 24) * height / peak:.1f}" for i, height in enumerate(heights)
    ]
    at = 5 + across * (report.activations.at // per)
    anchor = "end" if at > _WIDTH / 2 else "start"
    return (
        f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT + 22}' role=img aria-label='memory over the operations'>"
        f"<polygon class=area points='5,{_HEIGHT} {' '.join(points)} {_WIDTH - 5:.0f},{_HEIGHT}'></polygon>"
        f"<line class=peak x1={at:.1f} y1=4 x2={at:.1f} y2={_HEIGHT}></line>"
        f"<text x={at + (-6 if anchor == 'end' else 6):.1f} y=14 text-anchor={anchor}>"
        f"{size_text(peak)} at operation {report.activations.at + 1:,}</text>"
        f"<text x=5 y={_HEIGHT + 17}>first operation</text>"
        f"<text x={_WIDTH - 5} y={_HEIGHT + 17} text-anchor=end>operation {len(course):,}</text></svg>"
        "<p class=dim>If every value takes memory from its operation to its last use. A compiled program fuses "
        "operations and takes less.</p>"
    )


def _traffic(report: StepReport) -> Iterator[tuple[str, str]]:
    yield "inputs", f"{', '.join(report.inputs) or 'none'} ({size_text(report.input_bytes)})"
    yield "outputs", f"{count_text(report.outputs, 'tensor')} ({size_text(report.output_bytes)})"
    if report.micro_batch_size is not None:
        yield "micro-batch", f"{report.micro_batch_size} samples at a time"
    yield "state", f"{count_text(report.state_tensors, 'tensor')} ({size_text(report.state_bytes)})"
    for name, sent in report.collectives.items():
        yield "collective", f"{name} of {size_text(sent)}"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    return f"<table>{''.join(f'<tr><th>{name}</th><td>{escape(value)}</td></tr>' for name, value in rows)}</table>"


def _list(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"
