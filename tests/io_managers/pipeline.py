"""A small project over the Dagster shell: every asset of the real one, and assets made to a test's order."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa

from io_managers import tables
from io_managers.delta_io_manager import DeltaIOManager, StageWrite, StageWrites, VectorWrite, VectorWrites
from io_managers.delta_table import Committed
from io_managers.reading import StoredPartitions
from resources.records import EngineRecord, EngineVerdict, digest, extraction_request
from tests.io_managers.store import (
    ENGINE,
    VERDICT,
    Stream,
    manifest_of,
    probe_rows,
    token_rows,
    vectors_of,
    work_items,
)

SHARDS = dg.DynamicPartitionsDefinition(name="probe_shards")
PARTS = ("set.002", "set.000", "set.001")
RANGE = {"dagster/asset_partition_range_start": PARTS[0], "dagster/asset_partition_range_end": PARTS[-1]}
SINGLE_RUN = dg.BackfillPolicy.single_run()
RETRY = dg.RetryPolicy(max_retries=2)


def described(committed: Committed) -> dict[str, Any]:
    return {"rows": committed.rows, "skipped": committed.skipped}


def stage_write(spec: tables.TableSpec, rows: Sequence[dict[str, Any]], part: str, **settings: Any) -> StageWrite:
    return StageWrite(
        **{
            "part": part,
            "stage": spec.name,
            "content_digest": digest(repr(row).encode() for row in rows),
            "n_rows": len(rows),
            "batches": lambda: iter([pa.RecordBatch.from_pylist(list(rows), schema=spec.schema)]),
            "describe": described,
        }
        | settings
    )


def pipeline(
    *, streams: Callable[[str], Stream] = lambda part: Stream(work_items(part), vectors_of(work_items(part)))
) -> list[dg.AssetsDefinition]:
    """Every asset of the project, small; only the vectors can be tampered with."""
    common: dict[str, Any] = {
        "partitions_def": SHARDS,
        "backfill_policy": SINGLE_RUN,
        "io_manager_key": "delta",
        "retry_policy": RETRY,
    }

    @dg.asset(**common)
    def probe_sets(context: dg.AssetExecutionContext) -> StageWrites:
        return StageWrites(stage_write(tables.PROBE_SETS, probe_rows(work_items(p)), p) for p in context.partition_keys)

    @dg.asset(**common, deps=[probe_sets])
    def tokenised_batches(context: dg.AssetExecutionContext) -> StageWrites:
        spec = tables.TOKENISED_BATCHES
        return StageWrites(stage_write(spec, token_rows(work_items(p)), p) for p in context.partition_keys)

    @dg.asset(**common, key="work_items", deps=[tokenised_batches])
    def manifest(context: dg.AssetExecutionContext) -> StageWrites:
        return StageWrites(
            stage_write(tables.WORK_ITEMS, [asdict(m) for m in manifest_of(work_items(p))], p)
            for p in context.partition_keys
        )

    @dg.asset(io_manager_key="delta")
    def engine(context: dg.AssetExecutionContext) -> EngineRecord:
        context.add_output_metadata({"directory": ENGINE.directory})
        return ENGINE

    @dg.asset(io_manager_key="delta")
    def engine_validation_report(engine: EngineRecord) -> EngineVerdict:
        return replace(VERDICT, engine_id=engine.engine_id)

    @dg.asset(**common)
    def extraction_requests(
        context: dg.AssetExecutionContext, work_items: StoredPartitions, engine: EngineRecord
    ) -> StageWrites:
        ids = {"engine_id": engine.engine_id, "model_key": engine.model_key, "dtype": engine.precision}
        return StageWrites(
            stage_write(
                tables.EXTRACTION_REQUESTS,
                [asdict(extraction_request(m, **ids)) for m in work_items.manifest(p)],
                p,
                scope={"engine_id": engine.engine_id},
            )
            for p in context.partition_keys
        )

    @dg.asset(**common, deps=[extraction_requests, engine_validation_report])
    def hidden_states(context: dg.AssetExecutionContext) -> VectorWrites:
        return VectorWrites(VectorWrite(stream=streams(p), describe=described) for p in context.partition_keys)

    return [
        probe_sets,
        tokenised_batches,
        manifest,
        engine,
        engine_validation_report,
        extraction_requests,
        hidden_states,
    ]


def run(
    assets: Sequence[dg.AssetsDefinition], lake: Path, instance: dg.DagsterInstance, **settings: Any
) -> dg.ExecuteInProcessResult:
    resources = {"delta": DeltaIOManager(lake=str(lake))}
    return dg.materialize(assets, instance=instance, resources=resources, raise_on_error=False, **settings)


def one_asset(name: str, value: Callable[[dg.AssetExecutionContext], Any], **settings: Any) -> dg.AssetsDefinition:
    """An asset that returns `value`, and would be retried."""

    @dg.asset(name=name, io_manager_key="delta", retry_policy=RETRY, **settings)
    def asset(context: dg.AssetExecutionContext) -> Any:
        return value(context)

    return asset


def partitioned(name: str, writes: Callable[[Sequence[str]], Any]) -> dg.AssetsDefinition:
    return one_asset(
        name, lambda context: writes(context.partition_keys), partitions_def=SHARDS, backfill_policy=SINGLE_RUN
    )
