"""Starts the extraction of what is missing or stale as Dagster backfills.

Contract: a partition is started when its vectors are missing or stale (`staleness`), no run of it is in progress and no
backfill that was started here is at work. What failed the last time is started in a backfill of its own for each
partition, so that one bad partition keeps no other of its range from being done. The runs use the engine that was
decided on here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import dagster as dg

from fabric_assets import cluster
from fabric_assets.partitions import PARTITIONED_ASSETS, probe_shards
from fabric_assets.upkeep.registered import registered_identities
from fabric_assets.upkeep.staleness import PartitionState, partition_states, summary
from io_managers import layout
from io_managers.reading import find_engine, latest_verdict
from resources.checkpoint.tokenizer import load_tokenizer
from resources.dagster_internals import (
    BulkActionsFilter,
    BulkActionStatus,
    PartitionBackfill,
    make_new_backfill_id,
)
from resources.errors import ConfigurationError
from resources.model import Model
from resources.records import EngineRecord

TAG = {"fabric/started_by": "extract_missing"}

ALONE = 20
"""Most partitions that failed and are started again at once, each in a backfill of its own."""


@dataclass(frozen=True)
class ToDo:
    """What is to be started. `engine` is None, and nothing else given, where `reason` is why nothing can be."""

    engine: EngineRecord | None
    reason: str
    together: tuple[PartitionState, ...] = ()
    alone: tuple[PartitionState, ...] = ()
    """Those whose last run failed."""

    @property
    def parts(self) -> list[str]:
        return [s.part for s in (*self.together, *self.alone)]


def to_do(instance: dg.DagsterInstance) -> ToDo:
    """What is missing or stale now, of the newest engine's model, or the contract's; reads digests only."""
    lake = layout.lake_path()
    engine = find_engine(lake, engine_id=cluster.engine_id())
    if engine is None:
        return ToDo(None, "there is no engine; materialise engine and engine_validation_report")
    verdict = latest_verdict(lake, engine.engine_id)
    if verdict is None or verdict.verdict != "proved":
        said = "was never validated" if verdict is None else f"is refused ({verdict.reason})"
        return ToDo(None, f"the newest engine, {engine.engine_id}, {said}; materialise engine_validation_report")
    if running := _at_work(instance):
        return ToDo(None, f"backfill {running[0].backfill_id} is still at work")
    known = instance.get_dynamic_partitions(str(probe_shards.name))
    identities = registered_identities()
    registered = {part: identities[part] for part in known if part in identities}
    states = partition_states(lake, registered, model_key=engine.model_key)
    wanted = [s for s in states if s.state != "current"]
    statuses = _statuses(instance, [s.part for s in wanted])
    free = [s for s in wanted if statuses.get(s.part) != dg.AssetPartitionStatus.IN_PROGRESS]
    failed = [s for s in free if statuses.get(s.part) == dg.AssetPartitionStatus.FAILED]
    together = tuple(s for s in free if statuses.get(s.part) != dg.AssetPartitionStatus.FAILED)
    return ToDo(engine, summary(states), together, tuple(failed[:ALONE]))


def start(
    instance: dg.DagsterInstance,
    graph: Any,
    work: ToDo,
    *,
    model: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> list[str]:
    """Adds the backfills, which the daemon then cuts into runs of ranges; returns their ids.

    The runs make tokens and packed batches as the engine was built for. `graph` is the code location's asset graph;
    `model` are settings of the resource of that name over those; `tags` are the backfills' beside `TAG`.
    """
    if work.engine is None:
        return []
    choice = {"config": {"engine_id": work.engine.engine_id}}
    run_config = {
        "ops": dict.fromkeys(("extraction_requests", "hidden_states", "hidden_states_checks"), choice),
        "resources": {"model": {"config": _built_for(work.engine) | dict(model or {})}},
    }
    groups = [work.together] if work.together else []
    ids = []
    for states in (*groups, *((state,) for state in work.alone)):
        backfill = PartitionBackfill.from_asset_partitions(
            backfill_id=make_new_backfill_id(),
            asset_graph=graph,
            partition_names=[s.part for s in states],
            asset_selection=[dg.AssetKey(name) for name in PARTITIONED_ASSETS],
            backfill_timestamp=time.time(),
            tags={**(tags or {}), **TAG},
            dynamic_partitions_store=instance,
            all_partitions=False,
            title=summary(states)[:100],
            description=f"engine {work.engine.engine_id}, model key {work.engine.model_key}",
            run_config=run_config,
        )
        instance.add_backfill(backfill)
        ids.append(backfill.backfill_id)
    return ids


def _built_for(engine: EngineRecord) -> dict[str, Any]:
    """The settings of `resources.model.Model` that an engine was built with: its tokenizer's policy, its limits."""
    directory = layout.engines_path() / engine.directory
    if not directory.exists():
        raise ConfigurationError(
            f"engine {engine.engine_id} is not at {directory}; the runs' settings are in its directory; copy that "
            "there from the machine that built it"
        )
    policy = asdict(load_tokenizer(directory).policy)
    settings = {name: value for name, value in policy.items() if name in Model.model_fields and value is not None}
    return settings | asdict(engine.limits)


def _at_work(instance: dg.DagsterInstance) -> Sequence[PartitionBackfill]:
    unfinished = [BulkActionStatus.REQUESTED, BulkActionStatus.CANCELING, BulkActionStatus.FAILING]
    return instance.get_backfills(filters=BulkActionsFilter(statuses=unfinished, tags=TAG))


def _statuses(instance: dg.DagsterInstance, parts: Sequence[str]) -> Mapping[str, dg.AssetPartitionStatus | None]:
    return instance.get_status_by_partition(dg.AssetKey("hidden_states"), parts, probe_shards) or {}
