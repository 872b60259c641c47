"""`fabric extract`: a probe file in, its vectors in the lake."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import dagster as dg

from fabric_assets.commands.jobs import run_job
from fabric_assets.commands.options import (
    model_options,
    model_settings,
    name_option,
    precision_option,
    probe_format,
    probe_options,
)
from fabric_assets.commands.probe_sets import register_probes
from fabric_assets.instance import open_instance
from io_managers import layout, reading
from resources.engine.backend import choose_backend
from resources.engine.config import read_engine_config
from resources.errors import FabricError


@click.command()
@probe_options
@name_option
@model_options
@click.option(
    "--threads", type=click.IntRange(min=1), default=None, help="CPU threads; unset: FABRIC_THREADS, else every core."
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "onnxruntime", "tensorrt"]),
    default="auto",
    show_default=True,
    help="What runs the model. auto: tensorrt where it can run, else onnxruntime on the CPU.",
)
@precision_option
@click.option(
    "--engine",
    "engine_dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=None,
    help="An engine directory to use, not to build one; also one of TensorRT-LLM's, whose tokenizer is --model's.",
)
def extract(
    probes: Path,
    threads: int | None,
    backend: str,
    precision: str,
    engine_dir: Path | None,
    **options: Any,
) -> None:
    """Extract one vector for each probe of PROBES (a file or a folder) into the lake."""
    started = time.monotonic()
    settings = model_settings(options)
    if engine_dir is not None:
        for limit, value in asdict(read_engine_config(engine_dir).limits).items():
            settings[limit] = min(settings[limit], value)
    run_config = {
        "resources": {
            "model": {"config": settings},
            "extraction_engine": {"config": {"threads": threads} if threads else {}},
        }
    }
    if engine_dir is not None:
        how = {"directory": str(engine_dir.resolve())}
    else:
        if backend == "auto":
            backend, reason = choose_backend()
            click.echo(f"backend: {reason}")
        how = {"backend": backend, "precision": precision}
    build = {"engine": {"config": how}}
    definitions = _definitions()
    with open_instance() as instance:
        probe_set = register_probes(
            instance, probes, name=options["name"], form=probe_format(options), shard_rows=options["shard_rows"]
        )
        click.echo(f"{probe_set.describe()}: {len(probe_set.shards)} partition(s)")
        built = run_job(definitions, instance, "build_engine", run_config | {"ops": build})
        engine = reading.read_engine(layout.lake_path(), run_id=built)
        click.echo(f"engine {engine.engine_id[:16]} ({engine.backend}, {engine.precision}) is proved")
        choice = {"config": {"engine_id": engine.engine_id}}
        use = {"ops": dict.fromkeys(("extraction_requests", "hidden_states", "hidden_states_checks"), choice)}
        failed = [
            shard.part
            for shard in probe_set.shards
            if not _run_shard(definitions, instance, shard.part, run_config | use, started)
        ]
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(probe_set.shards)} partitions failed: {', '.join(failed)}")
    click.echo(f"done in {time.monotonic() - started:.1f} s; the vectors are in {layout.lake_path()}/hidden_states")
    click.echo("read them: from io_managers.reading import read_hidden_states; ids, vectors = read_hidden_states()")


def _definitions() -> dg.Definitions:
    """Loaded when there is something to run: `fabric --help` does without."""
    from fabric_assets.definitions import defs

    return defs()


def _run_shard(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    part: str,
    run_config: dict[str, Any],
    started: float,
) -> bool:
    """Extracts one partition and says what it came to; False where it failed. `started` is the command's start."""
    try:
        run_job(definitions, instance, "extract", run_config, partition_key=part)
    except FabricError as error:
        click.echo(f"{part}: {error}", err=True)
        return False
    stored = reading.StoredPartitions(layout.lake_path(), (part,))
    refused = Counter(r.reason for r in stored.refusals(part))
    reasons = "".join(f", {n:,} {reason}" for reason, n in refused.most_common())
    click.echo(
        f"{part}: {sum(m.n_rows for m in stored.manifest(part)):,} vectors, {refused.total():,} refused{reasons}"
        f" ({time.monotonic() - started:.1f} s)"
    )
    return True
