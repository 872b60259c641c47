"""What a check says in a run over a range of partitions is of each partition."""

from __future__ import annotations

import dagster as dg
from deltalake import DeltaTable

from io_managers import layout
from io_managers.reading import read_engine
from io_managers.tables import HIDDEN_STATES
from tests.fabric_assets.conftest import PARTITIONED, Fabric

CHECKS = [
    dg.AssetCheckKey(dg.AssetKey(asset), name)
    for asset, name in (
        ("hidden_states", "rows_accounted"),
        ("hidden_states", "all_finite"),
        ("hidden_states", "payload_hashes"),
        ("hidden_states", "distinct_vectors"),
        ("probe_sets", "vectors_current"),
    )
]


def statuses(fabric: Fabric, check: dg.AssetCheckKey) -> dict[str, str]:
    """By partition, of the latest materialisation only, as the UI counts them."""
    storage = fabric.instance.event_log_storage
    infos = storage.get_asset_check_partition_info([check])
    return {str(info.partition_key): info.latest_execution_status.value for info in infos if info.is_current}


def test_every_partition_of_a_range_has_its_own_results(fabric: Fabric) -> None:
    parts = fabric.register(["a", "b", "c"], format="text", shard_rows=1)
    assert fabric.run("engine", "engine_validation_report").success
    ends = {"dagster/asset_partition_range_start": parts[0], "dagster/asset_partition_range_end": parts[2]}
    assert fabric.run(*PARTITIONED, tags=ends).success
    for check in CHECKS:
        assert statuses(fabric, check) == dict.fromkeys(parts, "SUCCEEDED"), check


def test_a_damaged_partition_of_a_range_fails_alone(fabric: Fabric) -> None:
    parts = fabric.register(["a", "b", "c"], format="text", shard_rows=1)
    assert fabric.run("engine", "engine_validation_report").success
    ends = {"dagster/asset_partition_range_start": parts[0], "dagster/asset_partition_range_end": parts[2]}
    assert fabric.run(*PARTITIONED, tags=ends).success
    engine = read_engine(layout.lake_path())
    table = DeltaTable(layout.lake_path() / HIDDEN_STATES.name / engine.model_key)
    table.update(updates={"payload_xxh3": "X'00'"}, predicate=f"part = '{parts[1]}'")

    job = dg.define_asset_job("checks", selection=dg.AssetSelection.checks_for_assets("hidden_states"))
    merged = dg.Definitions.merge(fabric.definitions, dg.Definitions(jobs=[job]))
    result = merged.resolve_job_def("checks").execute_in_process(
        instance=fabric.instance, tags=ends, raise_on_error=False
    )

    assert not result.success
    assert statuses(fabric, CHECKS[2]) == {parts[0]: "SUCCEEDED", parts[1]: "FAILED", parts[2]: "SUCCEEDED"}
