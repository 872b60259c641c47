"""Jobs, a schedule and a sensor: what the command line runs, what a person starts, and what runs by itself."""

import os

import dagster as dg
from pydantic import Field

from fabric_assets.partitions import PARTITIONED_ASSETS
from fabric_assets.upkeep import backfills, registration, watch
from io_managers import layout
from resources.errors import FabricError
from resources.model import Model
from resources.probe_files import register
from resources.records import digest

build_engine_job = dg.define_asset_job(
    "build_engine",
    selection=dg.AssetSelection.assets("engine", "engine_validation_report"),
    description="Builds the engine and proves it.",
)

extract_job = dg.define_asset_job(
    "extract",
    selection=dg.AssetSelection.assets(*PARTITIONED_ASSETS),
    description="Probe files in, vectors out, for one shard or a range, with the newest engine.",
)

AHEAD = {"dagster/priority": "1"}
"""Short jobs that others wait for go before the queued runs of a backfill."""


@dg.op(out=dg.Out(dg.Nothing))
def start_backfill(context: dg.OpExecutionContext, model: Model) -> None:
    """Starts what is missing or stale as a backfill, and says what that is."""
    work = backfills.to_do(context.instance)
    graph = context.repository_def.asset_graph
    settings = model.model_dump(exclude_defaults=True)
    # The UI then says that the schedule launched them, where one did.
    tags = {name: value for name, value in context.run.tags.items() if name == "dagster/schedule_name"}
    ids = backfills.start(context.instance, graph, work, model=settings, tags=tags)
    context.log.info(f"{work.reason}; backfills started: {', '.join(ids) or 'none'}")
    shown = [
        dg.TableRecord({"part": s.part, "state": s.state, "reason": s.reason, "alone": s in work.alone})
        for s in (*work.together, *work.alone)[:100]
    ]
    context.add_output_metadata(
        {
            "summary": work.reason,
            "partitions": len(work.parts),
            "backfills": dg.MetadataValue.json(ids),
            "first_partitions": dg.MetadataValue.table(shown) if shown else "none",
        }
    )


@dg.job(tags=AHEAD, description="Everything missing or stale now: starts it as backfills in ranges of partitions.")
def extract_missing() -> None:
    start_backfill()


@dg.schedule(
    job=extract_missing,
    cron_schedule=os.environ.get("FABRIC_SCHEDULE", "0 * * * *"),
    default_status=dg.DefaultScheduleStatus.RUNNING
    if "FABRIC_SCHEDULE" in os.environ
    else dg.DefaultScheduleStatus.STOPPED,
    description="Starts what is missing or stale, every hour or as FABRIC_SCHEDULE (cron) says. Without it the "
    "schedule is off until it is turned on.",
)
def extract_missing_schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    """Asks for a run only if there is something to do; a tick that does nothing says why."""
    work = backfills.to_do(context.instance)
    return dg.RunRequest() if work.parts else dg.SkipReason(work.reason)


class Arrivals(dg.Config):
    """What a listing of the watched folder found."""

    entries: list[str] = Field(description="Names of files or folders directly below the watched folder.")
    folder: str | None = Field(default=None, description="The folder's path or address; unset: FABRIC_WATCH.")


@dg.op(out=dg.Out(dg.Nothing))
def register_arrivals(context: dg.OpExecutionContext, config: Arrivals) -> None:
    """Registers each entry as a probe set and adds its partitions; one that cannot be read stops no other."""
    root = config.folder or os.environ.get("FABRIC_WATCH")
    if not root:
        raise dg.Failure(
            description="no folder is given and FABRIC_WATCH is not set; expected one of them; give one",
            allow_retries=False,
        )
    form, shard_rows = watch.read_format(root)
    failed = []
    for name in config.entries:
        try:
            path = watch.local_path(root, name, layout.home() / "incoming")
            probe_set = register(path, format=form, folder=layout.probes_path(), shard_rows=shard_rows)
            withdrawn = registration.add_partitions(context.instance, probe_set)
        except (FabricError, OSError) as error:
            failed.append(f"{name}: {error}")
            continue
        context.log.info(f"{probe_set.describe()}: {len(probe_set.shards):,} partitions")
        for gone in withdrawn:
            context.log.info(registration.sentence(gone))
    if failed:
        raise dg.Failure(description="; ".join(failed), allow_retries=False)


@dg.job(tags=AHEAD, description="Registers probe files of the watched folder and adds their partitions.")
def register_probe_files() -> None:
    register_arrivals()


@dg.sensor(
    job=register_probe_files,
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Watches the folder FABRIC_WATCH; a file that two listings in a row show the same is registered.",
)
def probe_folder(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    """One run for all that has settled since the last tick."""
    root = os.environ.get("FABRIC_WATCH")
    if not root:
        return dg.SkipReason("FABRIC_WATCH names no folder to watch")
    step = watch.next_step(watch.Cursor.from_json(context.cursor), watch.list_entries(root))
    for name in step.gone:
        context.log.warning(f"{name} is gone from {root}; `fabric withdraw` takes its vectors out")
    cursor = step.cursor.to_json()
    if not step.settled:
        waiting = f"; waiting for {', '.join(step.waiting[:5])} to stay the same" if step.waiting else ""
        return dg.SensorResult(skip_reason=f"nothing new in {root}{waiting}", cursor=cursor)
    arrivals = Arrivals(entries=[entry.name for entry in step.settled], folder=root)
    key = digest(f"{entry.name} {entry.fingerprint}".encode() for entry in step.settled).hex()
    run_config = dg.RunConfig(ops={"register_arrivals": arrivals})
    return dg.SensorResult(run_requests=[dg.RunRequest(run_key=key, run_config=run_config)], cursor=cursor)


class Withdrawal(dg.Config):
    """What is taken out."""

    probe_set: str = Field(description="The name of a registered probe set.")


@dg.op(out=dg.Out(dg.Nothing))
def withdraw_set(context: dg.OpExecutionContext, config: Withdrawal) -> None:
    """Takes a probe set out: its vectors, what they were made of, its partitions."""
    for gone in registration.withdraw_probe_set(context.instance, config.probe_set):
        context.log.info(registration.sentence(gone))


@dg.job(tags=AHEAD, description="Withdraws a probe set: its vectors and partitions go, its files stay.")
def withdraw_probe_set() -> None:
    withdraw_set()
