"""`fabric plan`: a dry run, and what it found for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import dagster as dg

from fabric_assets.commands.options import model_options, model_settings, precision_option, probe_format, probe_options
from fabric_assets.commands.planning import SAMPLE, Plan, Rate, plan
from fabric_assets.instance import open_instance
from io_managers import layout
from io_managers.stored_rows import stored_records
from io_managers.tables import ENGINES
from resources.model import Model

PARTITIONS_ASKED = 50
"""Of how many of the last partitions the rate is taken."""


@click.command(name="plan")
@probe_options
@model_options
@precision_option
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    default=SAMPLE,
    show_default=True,
    help="Most rows to tokenise; with more, what they come to is in proportion.",
)
def plan_command(probes: Path, precision: str, sample: int, **options: Any) -> None:
    """Say what extracting PROBES would come to. A dry run: nothing is registered, tokenised for keeps or computed."""
    model = Model(**model_settings(options))
    found = plan(
        probes,
        format=probe_format(options),
        shard_rows=options["shard_rows"],
        model=model,
        precision=precision,
        home=layout.home(),
        rate=_measured_rate(model.open_checkpoint().digest, precision),
        sample=sample,
    )
    click.echo("\n".join(_lines(found)))


def _measured_rate(checkpoint_digest: str, precision: str) -> Rate | None:
    """Of the newest partitions that engines of this checkpoint and precision extracted in this home."""
    if not (layout.home() / "dagster" / "dagster.yaml").exists():
        return None
    wanted = (checkpoint_digest, precision)
    rows = stored_records(layout.lake_path(), ENGINES, {})
    engines = {row["engine_id"] for row in rows if (row["checkpoint_digest"], row["precision"]) == wanted}
    if not engines:
        return None
    tokens, seconds, partitions = 0, 0.0, 0
    with open_instance() as instance:
        records = instance.fetch_materializations(dg.AssetKey("hidden_states"), limit=PARTITIONS_ASKED).records
    for record in records:
        shown = {} if record.asset_materialization is None else record.asset_materialization.metadata
        if "seconds" in shown and shown["engine_id"].value in engines:
            tokens += int(str(shown["tokens_computed"].value))
            seconds += float(str(shown["seconds"].value))
            partitions += 1
    return Rate(tokens, seconds, partitions) if seconds > 0 else None


def _lines(found: Plan) -> Iterator[str]:
    about = "" if found.exact else "about "
    yield f"{found.rows:,} rows, {_partitions(found.partitions)}"
    if not found.exact:
        yield f"  from {found.rows_tokenised:,} tokenised rows, the rest in proportion (--sample)"
    yield f"  probes      {about}{found.probes:,} vectors of {about}{found.sequences:,} different token sequences"
    yield f"  refusals    {about}{sum(found.refusals.values()):,}"
    for reason, n in found.refusals.items():
        yield f"              {n:,} {reason}"
    yield f"  tokens      {about}{found.tokens:,}, longest {found.longest:,}"
    yield f"  bytes       about {_size(found.bytes)}, {about}{_size(found.vector_bytes)} of them vectors"
    enough = "" if found.fits else ": NOT ENOUGH"
    yield f"  free disk   {_size(found.free_bytes)}{enough}"
    if found.rate is None or found.hours is None:
        yield "  time        not known: no engine of this model and precision has extracted here yet"
    else:
        yield (
            f"  time        {_duration(found.hours)} at {found.rate.tokens_per_second:,.0f} tokens/s, as "
            f"measured over {_partitions(found.rate.partitions)}"
        )


def _partitions(n: int) -> str:
    return "1 partition" if n == 1 else f"{n:,} partitions"


def _size(n: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"


def _duration(hours: float) -> str:
    if hours * 60 < 1:
        return "under a minute"
    return f"about {hours:.3g} hours" if hours >= 1 else f"about {hours * 60:.3g} minutes"
