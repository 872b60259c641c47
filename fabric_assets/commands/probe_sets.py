"""`fabric register` and `fabric withdraw`: probe sets put in and taken out."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import dagster as dg

from fabric_assets.commands.options import name_option, probe_format, probe_options
from fabric_assets.instance import open_instance
from fabric_assets.upkeep.registration import add_partitions, sentence, withdraw_probe_set
from io_managers import layout
from resources.probe_files import ProbeFormat, ProbeSet, register

PROGRESS_SECONDS = 5.0


@click.command(name="register")
@probe_options
@name_option
def register_command(probes: Path, **options: Any) -> None:
    """Register a probe file or folder: index it, cut it into shards, add them as Dagster partitions."""
    with open_instance() as instance:
        probe_set = register_probes(
            instance, probes, name=options["name"], form=probe_format(options), shard_rows=options["shard_rows"]
        )
    click.echo(f"{probe_set.describe()}: partitions {_parts_of(probe_set)}")


@click.command()
@click.argument("probe_set")
def withdraw(probe_set: str) -> None:
    """Take PROBE_SET out: its vectors, what they were made of and its partitions. Its files stay as they are."""
    with open_instance() as instance:
        for gone in withdraw_probe_set(instance, probe_set):
            click.echo(sentence(gone))


def register_probes(
    instance: dg.DagsterInstance, probes: Path, *, name: str | None, form: ProbeFormat, shard_rows: int
) -> ProbeSet:
    """Registers `probes`, adds their partitions, and tells what that took out of the lake."""
    probe_set = register(
        probes,
        name=name,
        format=form,
        shard_rows=shard_rows,
        folder=layout.probes_path(),
        progress=_reading_progress(probes),
    )
    for gone in add_partitions(instance, probe_set):
        click.echo(sentence(gone))
    return probe_set


def _parts_of(probe_set: ProbeSet) -> str:
    parts = [shard.part for shard in probe_set.shards]
    return parts[0] if len(parts) == 1 else f"{parts[0]} to {parts[-1]} ({len(parts)})"


def _reading_progress(probes: Path) -> Callable[[int, int], None]:
    """Says how far a large probe file has been read, every few seconds."""
    said = time.monotonic()

    def progress(bytes_read: int, bytes_total: int) -> None:
        nonlocal said
        if time.monotonic() - said >= PROGRESS_SECONDS:
            said = time.monotonic()
            click.echo(f"reading {probes}: {100 * bytes_read / max(1, bytes_total):.0f} %", err=True)

    return progress
