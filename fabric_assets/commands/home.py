"""`fabric init`."""

from __future__ import annotations

import click

from fabric_assets.instance import open_instance
from io_managers import layout


@click.command()
def init() -> None:
    """Make FABRIC_HOME with its Dagster instance, once; print where it is."""
    with open_instance():
        click.echo(layout.home())
