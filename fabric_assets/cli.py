"""`fabric`: a thin command line over the same assets that the Dagster UI runs.

Exit codes: 0 done; 1 something was refused or failed, said in a sentence; 2 the call itself is wrong.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import dagster as dg

from fabric_assets.instance import open_instance
from fabric_assets.options import (
    model_options,
    model_settings,
    name_option,
    precision_option,
    probe_format,
    probe_options,
)
from fabric_assets.plan_command import plan_command
from fabric_assets.registration import add_partitions, sentence, withdraw_probe_set
from fabric_assets.trace_command import trace_command
from fabric_assets.validate_command import validate
from fabric_assets.worker_commands import contract, worker
from io_managers import layout, reading
from io_managers.delta_table import StoreError
from io_managers.lineage import LineageError
from resources.engine.backend import choose_backend
from resources.engine.config import read_engine_config
from resources.errors import FabricError
from resources.probe_files import ProbeSet, register

PROGRESS_SECONDS = 5.0

OWN_ERRORS = {e.__name__ for e in (StoreError, LineageError, FabricError, *FabricError.__subclasses__())}
CONSOLE_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def main() -> None:
    """Runs `fabric`; an error raised on purpose is a sentence on standard error, not a traceback."""
    try:
        fabric(standalone_mode=True)
    except (FabricError, StoreError, LineageError) as error:
        click.echo(f"fabric: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        click.echo(f"fabric: {error}; make that path readable and writable, or name another", err=True)
        sys.exit(1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def fabric() -> None:
    """One proven hidden-state vector per probe. Everything made is kept in FABRIC_HOME (default: .fabric)."""
    _show_progress()


@fabric.command()
def init() -> None:
    """Make FABRIC_HOME with its Dagster instance, once; print where it is."""
    with open_instance():
        click.echo(layout.home())


@fabric.command(name="register")
@probe_options
@name_option
def register_command(probes: Path, **options: Any) -> None:
    """Register a probe file or folder: index it, cut it into shards, add them as Dagster partitions."""
    with open_instance() as instance:
        probe_set = _register(instance, probes, options)
    click.echo(f"{probe_set.describe()}: partitions {_parts_of(probe_set)}")


@fabric.command()
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
    run_config = CONSOLE_QUIET | {
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
        probe_set = _register(instance, probes, options)
        click.echo(f"{probe_set.describe()}: {len(probe_set.shards)} partition(s)")
        built = _run(definitions, instance, "build_engine", run_config | {"ops": build})
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


fabric.add_command(validate)
fabric.add_command(trace_command)
fabric.add_command(plan_command)


@fabric.command()
@click.argument("probe_set")
def withdraw(probe_set: str) -> None:
    """Take PROBE_SET out: its vectors, what they were made of and its partitions. Its files stay as they are."""
    with open_instance() as instance:
        for gone in withdraw_probe_set(instance, probe_set):
            click.echo(sentence(gone))


@fabric.command()
@click.argument("part")
@click.option(
    "--to", "target", required=True, type=click.Path(path_type=Path), help="A .npy, .safetensors or .parquet file."
)
@click.option("--model-key", default=None, help="Which model's vectors; unset: the newest engine's.")
def export(part: str, target: Path, model_key: str | None) -> None:
    """Write one partition's vectors, with the header that describes them, to a file."""
    rows = reading.export_partition(part, target, model_key=model_key)
    click.echo(f"{part}: {rows:,} vectors written to {target}")


fabric.add_command(contract)
fabric.add_command(worker)


def _register(instance: dg.DagsterInstance, probes: Path, options: dict[str, Any]) -> ProbeSet:
    """Registers `probes` as `probe_options` and `name_option` say."""
    probe_set = register(
        probes,
        name=options["name"],
        format=probe_format(options),
        shard_rows=options["shard_rows"],
        folder=layout.probes_path(),
        progress=_reading_progress(probes),
    )
    for gone in add_partitions(instance, probe_set):
        click.echo(sentence(gone))
    return probe_set


def _parts_of(probe_set: ProbeSet) -> str:
    parts = [shard.part for shard in probe_set.shards]
    return parts[0] if len(parts) == 1 else f"{parts[0]} to {parts[-1]} ({len(parts)})"


def _definitions() -> dg.Definitions:
    from fabric_assets.definitions import defs

    return defs()


def _run(
    definitions: dg.Definitions, instance: dg.DagsterInstance, job: str, run_config: dict[str, Any], **options: Any
) -> str:
    """Runs one job in this process and gives its run id; a failure's own sentence becomes the error."""
    result = definitions.resolve_job_def(job).execute_in_process(
        instance=instance, run_config=_for_job(definitions, job, run_config), raise_on_error=False, **options
    )
    checks = [
        f"{check.asset_key.to_user_string()}: check {check.check_name} failed"
        + "".join(f", {value.value}" for name, value in check.metadata.items() if name == "sentence")
        for check in result.get_asset_check_evaluations()
        if not check.passed and check.severity == dg.AssetCheckSeverity.ERROR
    ]
    if result.success and not checks:
        return result.run_id
    sentences = [_sentence(event.step_failure_data) for event in result.get_step_failure_events()]
    said = "; ".join(s.strip() for s in (checks or sentences) if s)
    raise FabricError(said or f"run {result.run_id} failed before its first step; `make ui` shows its log")


def _sentence(data: Any) -> str:
    """What a failed step has to say: its Failure's description, else the first error of this project's own among the
    causes, else the last cause."""
    if data.user_failure_data:
        return data.user_failure_data.description or ""
    error = data.error
    while error is not None and error.cause is not None and error.cls_name not in OWN_ERRORS:
        error = error.cause
    return error.message.partition(": ")[2] if error is not None else ""


def _run_shard(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    part: str,
    run_config: dict[str, Any],
    started: float,
) -> bool:
    try:
        _run(definitions, instance, "extract", run_config, partition_key=part)
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


def _for_job(definitions: dg.Definitions, job: str, run_config: dict[str, Any]) -> dict[str, Any]:
    """Only the resources that the job has: Dagster refuses configuration of any other."""
    known = definitions.resolve_job_def(job).resource_defs
    return run_config | {"resources": {k: v for k, v in run_config["resources"].items() if k in known}}


def _reading_progress(probes: Path) -> Callable[[int, int], None]:
    """Says how far a large probe file has been read, every few seconds."""
    said = time.monotonic()

    def progress(bytes_read: int, bytes_total: int) -> None:
        nonlocal said
        if time.monotonic() - said >= PROGRESS_SECONDS:
            said = time.monotonic()
            click.echo(f"reading {probes}: {100 * bytes_read / max(1, bytes_total):.0f} %", err=True)

    return progress


def _show_progress() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    fabric_logger = logging.getLogger("fabric")
    fabric_logger.addHandler(handler)
    fabric_logger.setLevel(logging.INFO)
    fabric_logger.propagate = False
