"""The commands `fabric contract` and `fabric worker`; what they do is in `serving`."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.option("--engine-id", default=None, help="Unset: the newest engine.")
def contract(engine_id: str | None) -> None:
    """Write what a worker must show to take work for an engine (FABRIC_CONTRACT, else in FABRIC_HOME)."""
    from fabric_assets.commands.serving import write_contract

    agreed, path = write_contract(engine_id)
    click.echo(f"{path}: engine {agreed.engine_id}, queue {agreed.queue}; reload the code location")


@click.command()
@click.option(
    "--engine",
    "engine_dir",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The engine directory that this worker holds.",
)
@click.option("--gpu", type=click.IntRange(min=0), default=None, help="The one GPU that this worker uses.")
@click.option(
    "--contract",
    "contract_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    help="The contract to meet; unset: FABRIC_CONTRACT, else the one in FABRIC_HOME.",
)
@click.option("--threads", type=click.IntRange(min=1), default=None, help="CPU threads; unset: every core.")
def worker(engine_dir: Path, gpu: int | None, contract_file: Path | None, threads: int | None) -> None:
    """Take work from FABRIC_BROKER, one step at a time, with one proven engine. Exit 78 when it may not."""
    from fabric_assets.commands.serving import serve

    sys.exit(serve(engine_dir, gpu=gpu, contract_file=contract_file, threads=threads))
