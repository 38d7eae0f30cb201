"""`cstorch benchmark-dataloader`: how fast a program's dataloader is."""

from __future__ import annotations

import click

from cstorch.command_line.output import as_json, named
from cstorch.utils.benchmark import benchmark_dataloader
from cstorch.utils.benchmark.page import write_page
from cstorch.utils.benchmark.report import report

_INTERRUPTED = 130


@click.command("benchmark-dataloader")
@click.argument("target", metavar="MODULE:INPUT_FN")
@click.option("--epochs", type=click.IntRange(min=1), help="Epochs to iterate over; 1 by default.")
@click.option("--steps", type=click.IntRange(min=1), help="Steps of each epoch; all by default.")
@click.option("--sampling-frequency", type=click.IntRange(min=1), help="Steps from sample to sample; 100 by default.")
@click.option("--activity", "activities", multiple=True, help="A profiler activity to sample: memory, cpu, io, ...")
@click.option("--html", type=click.Path(dir_okay=False), help="Write a page with plots to this file.")
@as_json
def benchmark(
    target: str,
    epochs: int | None,
    steps: int | None,
    sampling_frequency: int | None,
    activities: tuple[str, ...],
    html: str | None,
    json_: bool,
) -> None:
    """Iterate over the dataloader that INPUT_FN makes, and report how fast it is.

    INPUT_FN is called without arguments. Ctrl-C ends the benchmark and reports what was measured, with status 130;
    a dataloader without a batch ends with status 1.
    """
    input_fn = named(target)
    if not callable(input_fn):
        raise click.BadParameter(f"{target!r} is a {type(input_fn).__name__}, not a function")
    try:
        metrics = benchmark_dataloader(
            input_fn, epochs, steps, sampling_frequency, list(activities), print_metrics=False
        )
    except ValueError as error:
        if "no profiler activity" not in str(error):
            raise  # of the dataloader
        raise click.BadParameter(str(error)) from error
    click.echo(metrics.to_json() if json_ else report(metrics), nl=False)
    if html is not None:
        write_page(metrics, html)
    if metrics.is_partial or not metrics.total_steps:
        raise click.exceptions.Exit(_INTERRUPTED if metrics.is_partial else 1)
