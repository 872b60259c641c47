"""The Dagster shell, in real runs with dynamic partitions: what is stored, loaded, described and refused."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from io_managers import tables
from io_managers.delta_io_manager import DeltaIOManager, StageWrite, StageWrites, VectorWrite, VectorWrites
from io_managers.reading import StoredPartitions, read_hidden_states
from io_managers.stored_rows import stored_records
from resources.records import EngineRecord, EngineVerdict, Refusal
from tests.io_managers.pipeline import (
    PARTS,
    RANGE,
    RETRY,
    SHARDS,
    SINGLE_RUN,
    described,
    one_asset,
    partitioned,
    pipeline,
    run,
    stage_write,
)
from tests.io_managers.store import (
    ENGINE,
    VERDICT,
    Stream,
    put_engine,
    put_upstream,
    put_verdict,
    stored_state,
    vectors_of,
    work_items,
)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("probe_shards", list(PARTS))
        yield instance


def probe(part: str, probe_id: str = "p") -> dict[str, Any]:
    row = dict.fromkeys(tables.PROBE_SETS.schema.names)
    return row | {"part": part, "probe_id": probe_id, "text": "t", "source_uri": "f", "source_row": 0}


def refusal(part: str, reason: str = "empty-text", stage: str = "probe_sets") -> Refusal:
    return Refusal(part, stage, "q", reason, "", "f", 1)


def failure_of(result: dg.ExecuteInProcessResult) -> tuple[str, dict[str, Any]]:
    """The one failure of a run that was not retried: its description and metadata."""
    assert not result.success
    events = [event.event_type_value for event in result.all_events]
    assert "STEP_UP_FOR_RETRY" not in events
    [failed] = [event for event in result.all_events if event.event_type_value == "STEP_FAILURE"]
    data = failed.step_failure_data.user_failure_data
    return data.description, {name: value.value for name, value in data.metadata.items()}


def test_a_range_of_partitions_goes_through_every_stage_in_one_run(tmp_path: Path, instance) -> None:
    result = run(pipeline(), tmp_path, instance, tags=RANGE)

    assert result.success
    for part in PARTS:
        ids, vectors = read_hidden_states(part, lake=tmp_path)
        assert ids["probe_id"].to_list() == [p for item in work_items(part) for p in item.probe_ids]
        assert vectors.tobytes() == b"".join(c.payload.tobytes() for c in vectors_of(work_items(part)))
    ids, vectors = read_hidden_states(lake=tmp_path)
    assert ids["part"].unique(maintain_order=True).to_list() == sorted(PARTS)
    assert len(vectors) == 45


def test_each_partition_of_a_range_has_its_own_metadata(tmp_path: Path, instance) -> None:
    def writes(keys: Sequence[str]) -> StageWrites:
        return StageWrites(
            stage_write(tables.PROBE_SETS, [probe(part, str(n)) for n in range(int(part[-1]))], part) for part in keys
        )

    result = run([partitioned("probe_sets", writes)], tmp_path, instance, tags=RANGE)

    events = result.asset_materializations_for_node("probe_sets")
    assert {e.partition: e.metadata["rows"].value for e in events} == {part: int(part[-1]) for part in PARTS}


def test_a_single_partition_and_an_unpartitioned_output_are_described(tmp_path: Path, instance) -> None:
    result = run(pipeline(), tmp_path, instance, partition_key="set.001")

    [vectors] = result.asset_materializations_for_node("hidden_states")
    [engine] = result.asset_materializations_for_node("engine")
    assert (vectors.partition, vectors.metadata["rows"].value, vectors.metadata["skipped"].value) == (
        "set.001",
        15,
        False,
    )
    assert engine.metadata["directory"].value == ENGINE.directory
    assert engine.metadata["delta_version"].value == 1


def test_what_is_stored_is_not_extracted_again_by_a_second_run(tmp_path: Path, instance) -> None:
    pulled: list[Stream] = []

    def streams(part: str) -> Stream:
        pulled.append(Stream(work_items(part), vectors_of(work_items(part))))
        return pulled[-1]

    assets = pipeline(streams=streams)
    run(assets, tmp_path, instance, partition_key="set.001")
    before = stored_state(tmp_path, tables.HIDDEN_STATES, ENGINE.model_key)
    result = run(assets, tmp_path, instance, partition_key="set.001")

    assert result.success
    assert [stream.pulled for stream in pulled] == [3, 0]
    assert stored_state(tmp_path, tables.HIDDEN_STATES, ENGINE.model_key) == before


def test_partitions_are_loaded_in_the_order_of_their_definition(tmp_path: Path, instance) -> None:
    loaded: list[tuple[str, ...]] = []

    @dg.asset(partitions_def=SHARDS, backfill_policy=SINGLE_RUN)
    def reader(tokenised_batches: StoredPartitions) -> None:
        loaded.append(tokenised_batches.parts)

    for _ in range(3):
        assert run([*pipeline()[:2], reader], tmp_path, instance, tags=RANGE).success
    assert loaded == [PARTS] * 3


@pytest.mark.parametrize(
    ("built", "expected"), [(True, ENGINE.engine_id), (False, "n" * 32)], ids=["built", "not built"]
)
def test_the_engine_loaded_is_the_one_built_in_the_run_else_the_newest(
    tmp_path: Path, instance, built: bool, expected: str
) -> None:
    newest = replace(ENGINE, engine_id="n" * 32)
    put_engine(tmp_path, ENGINE, second=1)
    put_verdict(tmp_path, replace(VERDICT, engine_id=newest.engine_id))
    loaded: list[tuple[EngineRecord, EngineVerdict]] = []

    @dg.asset(io_manager_key="delta")
    def engine() -> EngineRecord:
        return ENGINE

    @dg.asset(io_manager_key="delta")
    def engine_validation_report(engine: EngineRecord) -> EngineVerdict:
        # Another run builds a newer engine in the meantime.
        put_engine(tmp_path, newest, run_id="another", second=59)
        return replace(VERDICT, report_id="r9", engine_id=engine.engine_id)

    @dg.asset
    def reader(engine: EngineRecord, engine_validation_report: EngineVerdict) -> None:
        loaded.append((engine, engine_validation_report))

    if not built:
        put_engine(tmp_path, newest, run_id="another", second=59)
    assets = [engine, engine_validation_report, reader]
    assert run(assets, tmp_path, instance, selection=None if built else [reader]).success
    assert [(e.engine_id, v.engine_id) for e, v in loaded] == [(expected, expected)]
    assert loaded[0][0].limits == ENGINE.limits


def test_an_engine_that_nobody_built_is_a_failure_that_says_what_to_do(tmp_path: Path, instance) -> None:
    @dg.asset(io_manager_key="delta")
    def engine() -> EngineRecord:
        return ENGINE

    @dg.asset(retry_policy=RETRY)
    def reader(engine: EngineRecord) -> None: ...

    description, _ = failure_of(run([engine, reader], tmp_path, instance, selection=[reader]))
    assert "materialise engine" in description


def test_refusals_are_replaced_by_the_next_run_of_their_stage_only(tmp_path: Path, instance) -> None:
    def refused(*reasons: str) -> list[str]:
        refusals = [refusal("set.000", reason) for reason in reasons]
        write = stage_write(tables.PROBE_SETS, [probe("set.000")], "set.000", refusals=refusals)
        asset = partitioned("probe_sets", lambda keys: StageWrites([write]))
        assert run([asset], tmp_path, instance, partition_key="set.000").success
        stored = StoredPartitions(tmp_path, ("set.000",)).refusals("set.000")
        return sorted(f"{r.stage}: {r.reason}" for r in stored)

    other = stage_write(
        tables.TOKENISED_BATCHES, [], "set.000", refusals=[refusal("set.000", "over-long", "tokenised_batches")]
    )
    assert run(
        [partitioned("tokenised_batches", lambda keys: StageWrites([other]))],
        tmp_path,
        instance,
        partition_key="set.000",
    ).success

    assert refused("empty-text", "invalid-utf8") == [
        "probe_sets: empty-text",
        "probe_sets: invalid-utf8",
        "tokenised_batches: over-long",
    ]
    assert refused("missing-id") == ["probe_sets: missing-id", "tokenised_batches: over-long"]
    assert refused() == ["tokenised_batches: over-long"]
    assert refused("empty-text") == ["probe_sets: empty-text", "tokenised_batches: over-long"]


def test_refusals_are_committed_before_the_rows_of_their_stage(tmp_path: Path, instance) -> None:
    write = stage_write(tables.PROBE_SETS, [probe("set.000")], "set.000", refusals=[refusal("set.000")], n_rows=2)

    failure_of(
        run([partitioned("probe_sets", lambda keys: StageWrites([write]))], tmp_path, instance, partition_key="set.000")
    )

    assert len(list(stored_records(tmp_path, tables.REFUSED_PROBES, {}))) == 1
    assert list(stored_records(tmp_path, tables.PROBE_SETS, {})) == []


def of(*parts: str) -> StageWrites:
    return StageWrites(stage_write(tables.PROBE_SETS, [probe(part)], part) for part in parts)


WRONG_OUTPUTS: dict[str, tuple[str, Callable[[Sequence[str]], Any], str]] = {
    "a partition too few": ("probe_sets", lambda keys: of(*keys[:-1]), "wrote nothing for ['set.001']"),
    "no partition": ("probe_sets", lambda keys: of(), "wrote nothing"),
    "a partition twice": ("probe_sets", lambda keys: of(*keys, keys[0]), "'set.002'"),
    "a partition of another run": ("probe_sets", lambda keys: of(*keys, "set.009"), "'set.009'"),
    "a data frame": ("probe_sets", lambda keys: pa.table({"a": [1]}), "Table"),
    "nothing": ("probe_sets", lambda keys: None, "NoneType"),
    "an engine for a partitioned table": ("probe_sets", lambda keys: ENGINE, "EngineRecord"),
    "vectors for another table": (
        "probe_sets",
        lambda keys: VectorWrites([VectorWrite(stream=Stream(work_items(keys[0]), []), describe=described)]),
        "VectorWrite",
    ),
    "rows past the lineage check": ("hidden_states", lambda keys: of(*keys), "StageWrite"),
    "refusals of another stage": (
        "probe_sets",
        lambda keys: StageWrites(
            stage_write(tables.PROBE_SETS, [], k, refusals=[refusal(k, stage="tokenised_batches")]) for k in keys
        ),
        "tokenised_batches",
    ),
    "an asset without a table": ("results", lambda keys: of(*keys), "no table"),
}


@pytest.mark.parametrize("case", WRONG_OUTPUTS)
def test_an_output_that_the_store_does_not_take_is_a_failure_without_a_retry(
    tmp_path: Path, instance, case: str
) -> None:
    name, writes, seen = WRONG_OUTPUTS[case]

    description, _ = failure_of(run([partitioned(name, writes)], tmp_path, instance, tags=RANGE))

    assert seen in description


def test_an_engine_row_takes_nothing_but_an_engine(tmp_path: Path, instance) -> None:
    description, _ = failure_of(run([one_asset("engine", lambda _: VERDICT)], tmp_path, instance))

    assert "EngineVerdict" in description
    assert stored_state(tmp_path, tables.ENGINES) is None


def test_vectors_that_break_lineage_fail_the_run_with_the_evidence_and_store_nothing(tmp_path: Path, instance) -> None:
    attempts: list[Stream] = []

    def streams(part: str) -> Stream:
        items = work_items(part)
        chunks = vectors_of(items)
        attempts.append(Stream(items, [chunks[0], chunks[2], chunks[1]]))
        return attempts[-1]

    description, metadata = failure_of(run(pipeline(streams=streams), tmp_path, instance, partition_key="set.001"))

    assert metadata["clause"] == "reordered-work-item"
    assert "set.001-00000002" in metadata["seen"]
    assert "set.001-00000001" in metadata["expected"]
    assert "materialise" in metadata["advice"]
    assert all(metadata[name] in description for name in ("seen", "expected", "advice"))
    assert [(stream.closed, stream.pulled) for stream in attempts] == [(True, 2)]
    assert list(stored_records(tmp_path, tables.EXTRACTION_REQUESTS, {})) != []
    version, files = stored_state(tmp_path, tables.HIDDEN_STATES, ENGINE.model_key) or (0, [])
    assert (version, files) == (0, [])


def test_a_refusal_raised_inside_the_stream_comes_out_as_itself(tmp_path: Path, instance) -> None:
    refused = dg.Failure("the engine is refused", metadata={"verdict": "ambiguous"}, allow_retries=False)
    attempts: list[Stream] = []

    def streams(part: str) -> Stream:
        attempts.append(Stream(work_items(part), vectors_of(work_items(part))[:1], failure=refused))
        return attempts[-1]

    description, metadata = failure_of(run(pipeline(streams=streams), tmp_path, instance, partition_key="set.001"))

    assert (description, metadata) == ("the engine is refused", {"verdict": "ambiguous"})
    assert [stream.closed for stream in attempts] == [True]


@pytest.mark.parametrize("where", ["in the asset", "in the store"])
def test_a_failure_half_way_through_a_range_keeps_what_is_stored_and_closes_the_asset(
    tmp_path: Path, instance, where: str
) -> None:
    closed: list[str] = []

    def writes(keys: Sequence[str]) -> Iterator[StageWrite]:
        try:
            yield stage_write(tables.PROBE_SETS, [probe(keys[0])], keys[0])
            if where == "in the asset":
                raise dg.Failure("the contract is not met", allow_retries=False)
            yield stage_write(tables.PROBE_SETS, [probe(keys[1])], keys[1], n_rows=9)
        finally:
            closed.append("closed")

    asset = partitioned("probe_sets", lambda keys: StageWrites(writes(keys)))
    description, _ = failure_of(run([asset], tmp_path, instance, tags=RANGE))

    assert ("the contract is not met" if where == "in the asset" else "expected 9") in description
    assert closed == ["closed"]
    assert [r["part"] for r in stored_records(tmp_path, tables.PROBE_SETS, {})] == [PARTS[0]]


def test_the_lake_of_an_unset_manager_is_that_of_the_home(tmp_path: Path, instance, monkeypatch) -> None:
    monkeypatch.setenv("FABRIC_HOME", str(tmp_path))
    asset = partitioned("probe_sets", lambda keys: of(*keys))

    result = dg.materialize([asset], instance=instance, resources={"delta": DeltaIOManager()}, partition_key="set.001")

    assert result.success
    assert list(stored_records(tmp_path / "lake", tables.PROBE_SETS, {})) == [probe("set.001")]


def test_a_second_engine_of_one_model_adds_no_second_copy(tmp_path: Path, instance) -> None:
    put_upstream(tmp_path, work_items("set.001"))
    run(pipeline(), tmp_path, instance, partition_key="set.001")
    rebuilt = replace(ENGINE, engine_id="f" * 32)
    put_upstream(tmp_path, work_items("set.001"), rebuilt)
    put_verdict(tmp_path, replace(VERDICT, report_id="r7", engine_id=rebuilt.engine_id))
    items = work_items("set.001")
    stream = Stream(items, vectors_of(items, rebuilt), rebuilt)
    asset = partitioned("hidden_states", lambda keys: VectorWrites([VectorWrite(stream=stream, describe=described)]))

    assert run([asset], tmp_path, instance, partition_key="set.001").success

    ids, _ = read_hidden_states("set.001", lake=tmp_path)
    assert stream.pulled == 0
    assert ids["engine_id"].unique().to_list() == [ENGINE.engine_id]
