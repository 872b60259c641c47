"""`fabric export`."""

from __future__ import annotations

from pathlib import Path

import click

from io_managers import reading


@click.command()
@click.argument("part")
@click.option(
    "--to", "target", required=True, type=click.Path(path_type=Path), help="A .npy, .safetensors or .parquet file."
)
@click.option("--model-key", default=None, help="Which model's vectors; unset: the newest engine's.")
def export(part: str, target: Path, model_key: str | None) -> None:
    """Write one partition's vectors, with the header that describes them, to a file."""
    rows = reading.export_partition(part, target, model_key=model_key)
    click.echo(f"{part}: {rows:,} vectors written to {target}")
