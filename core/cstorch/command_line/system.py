"""`cstorch system`: a system of a run whose controller is another process, on this host or elsewhere."""

from __future__ import annotations

import click

from cstorch.errors import BackendError


@click.command()
@click.argument("address", metavar="HOST:PORT")
@click.option("--credentials", type=click.Path(), help="The file with the run's secret (credentials_path).")
@click.option("--compile-dir", type=click.Path(), help="The folder of the compile cache.")
def system(address: str, credentials: str | None, compile_dir: str | None) -> None:
    """Be a system of the run that waits at HOST:PORT, its ClusterConfig.mgmt_address, until it ends."""
    from cstorch.appliance.connect import join

    try:
        join(address, credentials, compile_dir)
    except BackendError as error:
        raise click.ClickException(str(error)) from None
