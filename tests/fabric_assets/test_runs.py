"""Whole runs through Dagster, on a tiny real checkpoint and a home of its own."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pytest

from fabric_assets.engine_contract import canary_of
from io_managers import layout
from io_managers.reading import StoredPartitions, latest_verdict, read_engine, read_hidden_states
from resources import extraction_engine
from resources.checkpoint.tokenizer import load_tokenizer
from resources.proof import load
from tests.fabric_assets.conftest import ALL_ASSETS, PARTITIONED, Fabric
from tests.tiny import tiny_gguf
from tests.zoo import write_engine


def failure(result: dg.ExecuteInProcessResult, step: str) -> Any:
    """The one failed step's data."""
    [event] = result.get_step_failure_events()
    assert event.step_key == step, event.step_key
    return event.step_failure_data


def metadata(result: dg.ExecuteInProcessResult, asset: str, part: str | None = None) -> dict[str, Any]:
    [event] = [
        e
        for e in result.get_asset_materialization_events()
        if e.asset_key == dg.AssetKey(asset) and e.partition == part
    ]
    return {name: value.value for name, value in event.materialization.metadata.items()}


def test_one_run_makes_the_engine_and_every_vector_with_it(fabric: Fabric) -> None:
    texts = ["one", "the one and the other", "the", "a b c", "the one and the other"]
    [part] = fabric.register(texts, format="text")
    result = fabric.extract(part)
    assert result.success
    ids, vectors = read_hidden_states(part)
    assert sorted(ids["probe_id"]) == [f"set.txt:{row}" for row in range(5)]
    assert set(ids["engine_id"]) == {metadata(result, "engine")["engine_id"]}
    engine = read_engine(layout.lake_path())
    with load(layout.engines_path() / engine.directory) as proven:
        tokens = load_tokenizer(layout.engines_path() / engine.directory).encode(texts)
        for probe_id, vector in zip(ids["probe_id"], vectors, strict=True):
            [alone] = proven.extract([tokens[int(probe_id.removeprefix("set.txt:"))]])
            np.testing.assert_allclose(vector, alone, rtol=1e-4, atol=1e-5)


def test_equal_texts_are_computed_once_and_stored_each(fabric: Fabric) -> None:
    [part] = fabric.register(["same", "other", "same", "same"], format="text")
    result = fabric.extract(part)
    assert metadata(result, "hidden_states", part)["sequences"] == 2
    assert metadata(result, "hidden_states", part)["dagster/partition_row_count"] == 4


def test_the_run_reports_what_it_did_for_each_partition(fabric: Fabric) -> None:
    parts = fabric.register([*(f"text {n}" for n in range(5)), ""], format="text", shard_rows=3)
    assert fabric.run("engine", "engine_validation_report").success
    result = fabric.run(
        *PARTITIONED,
        tags={"dagster/asset_partition_range_start": parts[0], "dagster/asset_partition_range_end": parts[-1]},
    )
    assert result.success
    seen = [metadata(result, "hidden_states", part) for part in parts]
    assert [m["dagster/partition_row_count"] for m in seen] == [3, 2]
    assert [m["refusals_by_reason"] for m in seen] == [{}, {"probe_sets: empty-text": 1}]
    for m in seen:
        assert m["tokens"] > 0
        assert m["tokens_per_second_peak"] >= m["tokens_per_second_average"] > 0
        assert m["versions_read"].keys() >= {"tokenised_batches", "work_items", "extraction_requests", "engines"}
        assert m["norm_least"] <= m["norm_mean"] <= m["norm_greatest"]
        assert "█" in m["norm_histogram"]
    first = seen[0]["sample_rows"].records if hasattr(seen[0]["sample_rows"], "records") else seen[0]["sample_rows"]
    assert sorted(r.data["text"] for r in first) == ["text 0", "text 1", "text 2"]
    assert [r.data["gathered_token"] for r in first] == [r.data["text"][-1] for r in first]


def test_checks_pass_on_a_good_partition_and_are_blocking_where_they_must(fabric: Fabric) -> None:
    [part] = fabric.register(["one", "two", "", "two"], format="text")
    evaluations = fabric.extract(part).get_asset_check_evaluations()
    assert {e.check_name: (e.passed, e.blocking) for e in evaluations} == {
        "convention_proved": (True, True),
        "rows_accounted": (True, True),
        "all_finite": (True, True),
        "payload_hashes": (True, True),
        "distinct_vectors": (True, False),
        "vectors_current": (True, False),
    }


def test_running_again_stores_and_computes_nothing(fabric: Fabric) -> None:
    [part] = fabric.register(["one", "two"], format="text")
    first = metadata(fabric.extract(part), "hidden_states", part)
    again = metadata(fabric.run(*PARTITIONED, partition_key=part), "hidden_states", part)
    assert (first["already_stored"], again["already_stored"]) == (False, True)
    assert again["delta_version"] == first["delta_version"]
    assert "tokens_computed" not in again
    assert again["tokens"] == first["tokens"] == first["tokens_computed"]


def test_running_again_opens_no_engine(fabric: Fabric) -> None:
    [part] = fabric.register(["one", "two"], format="text")
    assert fabric.extract(part).success
    extraction_engine._close_opened()
    assert fabric.run(*PARTITIONED, partition_key=part).success
    assert not extraction_engine._opened


@pytest.mark.parametrize("table", ["probe_sets", "tokenised_batches", "work_items", "hidden_states"])
def test_what_is_unchanged_but_damaged_is_made_again(fabric: Fabric, table: str) -> None:
    [part] = fabric.register(["one", "two"], format="text")
    assert fabric.extract(part).success
    _, before = read_hidden_states(part)
    [file] = (layout.lake_path() / table).rglob("part=*/*.parquet")
    file.write_bytes(file.read_bytes()[:-1])

    result = fabric.run(*PARTITIONED, partition_key=part)

    assert result.success
    kept = {asset: metadata(result, asset, part)["already_stored"] for asset in PARTITIONED}
    assert [asset for asset, was_kept in kept.items() if not was_kept] == [table]
    np.testing.assert_array_equal(read_hidden_states(part)[1], before)


def test_probes_that_went_are_counted_where_they_were(fabric: Fabric) -> None:
    [part] = fabric.register(["one", "two", "three"], format="text")
    assert metadata(fabric.extract(part), "hidden_states", part)["withdrawn"] == 0
    fabric.register(["one"], format="text")
    result = fabric.run(*PARTITIONED, partition_key=part)
    assert [metadata(result, asset, part)["withdrawn"] for asset in ("probe_sets", "hidden_states")] == [2, 2]
    assert list(read_hidden_states(part)[0]["probe_id"]) == ["set.txt:0"]


def test_a_probe_file_that_grew_is_extracted_anew(fabric: Fabric) -> None:
    [part] = fabric.register(["one"], format="text")
    assert fabric.extract(part).success
    assert fabric.register(["one", "two"], format="text") == [part]
    assert fabric.extract(part).success
    assert len(read_hidden_states(part)[0]) == 2


@pytest.mark.parametrize("kind", ["all-zero", "ignores-input", "one-before-last", "bidirectional", "key-value-cache"])
def test_a_refused_engine_fails_before_a_row_is_written(fabric: Fabric, tmp_path: Path, kind: str) -> None:
    [part] = fabric.register(["one", "two"], format="text")
    write_engine(kind, tmp_path / "engine")
    ops = {"engine": {"config": {"directory": str(tmp_path / "engine")}}}
    validated = fabric.run("engine", "engine_validation_report", ops=ops)
    [check] = validated.get_asset_check_evaluations()
    assert (check.check_name, check.passed, check.severity) == ("convention_proved", False, dg.AssetCheckSeverity.ERROR)
    engine = read_engine(layout.lake_path())
    verdict = latest_verdict(layout.lake_path(), engine.engine_id)
    assert verdict is not None
    assert verdict.verdict == "refused"

    result = fabric.run(*PARTITIONED, partition_key=part)
    data = failure(result, "hidden_states")
    evidence = data.user_failure_data.metadata
    assert evidence["verdict"].value == "refused"
    assert evidence["reason"].value == verdict.reason
    assert json.loads(verdict.evidence_json) == evidence["evidence"].value
    attempts = Counter(e.step_key for e in result.all_events if e.event_type_value == "STEP_START")
    assert attempts["hidden_states"] == 1
    assert not (layout.lake_path() / "hidden_states").exists()


def test_an_engine_that_was_never_validated_stores_nothing(fabric: Fabric) -> None:
    [part] = fabric.register(["one"], format="text")
    assert fabric.run("engine").success
    data = failure(fabric.run(*PARTITIONED, partition_key=part), "hidden_states")
    assert "valid" in data.user_failure_data.description
    assert not list((layout.lake_path() / "hidden_states").rglob("*.parquet"))


def test_work_items_of_another_tokenizer_fail_the_contract(fabric: Fabric) -> None:
    [part] = fabric.register(["one"], format="text")
    assert fabric.extract(part).success
    other = {"over_long": "truncate_left"}
    assert fabric.run("tokenised_batches", "work_items", partition_key=part, model=other).success
    data = failure(fabric.run("extraction_requests", "hidden_states", partition_key=part), "hidden_states")
    assert "tokenizer" in data.user_failure_data.description
    clauses = {
        record.data["clause"]: record.data["passed"] for record in data.user_failure_data.metadata["contract"].records
    }
    assert clauses.pop("tokenizer") is False
    assert all(clauses.values())


def test_two_models_keep_tables_of_their_own(fabric: Fabric) -> None:
    [part] = fabric.register(["one two three " * 10], format="text")
    assert fabric.extract(part, model={"over_long": "truncate_left"}).success
    first = read_engine(layout.lake_path()).model_key
    assert fabric.extract(part, model={"over_long": "truncate_right"}).success
    second = read_engine(layout.lake_path()).model_key
    assert first != second
    left, right = (read_hidden_states(part, model_key=key)[0] for key in (first, second))
    assert list(left["truncated"]) == list(right["truncated"]) == [True]
    assert left["token_hash"][0] != right["token_hash"][0]


def test_the_newest_engine_is_used_and_earlier_requests_stay(fabric: Fabric) -> None:
    [part] = fabric.register(["one"], format="text")
    assert fabric.extract(part).success
    first = read_engine(layout.lake_path()).engine_id
    assert fabric.run(*ALL_ASSETS, partition_key=part, model={"max_batch_size": 8}).success
    second = read_engine(layout.lake_path()).engine_id
    stored = StoredPartitions(layout.lake_path(), (part,))
    assert first != second
    assert stored.requests(part, first) and stored.requests(part, second)


@pytest.fixture
def other_model(tmp_path: Path) -> dict[str, str]:
    """Another checkpoint with the same tokenizer: nothing but its weights tells the two apart."""
    return {"checkpoint": str(tiny_gguf(tmp_path / "other.gguf", seed=7))}


def test_an_engine_of_another_model_is_not_used_because_it_is_the_newest(
    fabric: Fabric, other_model: dict[str, str]
) -> None:
    [part] = fabric.register(["one"], format="text")
    assert fabric.extract(part).success
    assert fabric.run("engine", "engine_validation_report", model=other_model).success
    for asset in ("extraction_requests", "hidden_states"):
        data = failure(fabric.run(asset, partition_key=part), asset)
        assert "this run's model" in data.user_failure_data.description
    assert len(list((layout.lake_path() / "hidden_states").iterdir())) == 1


def test_a_run_that_names_its_engine_keeps_it_when_a_newer_one_is_built(
    fabric: Fabric, other_model: dict[str, str]
) -> None:
    [part] = fabric.register(["one"], format="text")
    assert fabric.run("engine", "engine_validation_report").success
    first = read_engine(layout.lake_path())
    assert fabric.run("engine", "engine_validation_report", model=other_model).success
    choice = {"config": {"engine_id": first.engine_id}}
    ops = dict.fromkeys(("extraction_requests", "hidden_states", "hidden_states_checks"), choice)
    result = fabric.run(*PARTITIONED, partition_key=part, ops=ops)
    assert result.success
    assert all(e.passed for e in result.get_asset_check_evaluations())
    ids, _ = read_hidden_states(part, model_key=first.model_key)
    assert set(ids["engine_id"]) == {first.engine_id}


def test_another_build_of_a_model_must_reproduce_its_stored_vectors(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = fabric.register(["one", "two three", "four", "five", "six"], format="text", shard_rows=2)
    assert fabric.extract(first).success
    stored = read_engine(layout.lake_path())
    assert fabric.run("engine", "engine_validation_report", model={"max_batch_size": 8}).success
    assert read_engine(layout.lake_path()).model_key == stored.model_key
    result = fabric.run(*PARTITIONED, partition_key=second, model={"max_batch_size": 8})
    assert result.success
    [clause] = [
        r.data for r in metadata(result, "hidden_states", second)["contract"].records if "canary" in r.data["clause"]
    ]
    assert clause["passed"] and "registered vectors" in clause["expected"]

    canary = canary_of(read_engine(layout.lake_path()), layout.lake_path())
    assert canary is not None
    strict = replace(canary, tolerance=-1.0)
    monkeypatch.setattr("fabric_assets.defs.hidden_states.canary_of", lambda *_: strict)
    assert fabric.run("engine", "engine_validation_report", model={"max_batch_size": 6}).success
    data = failure(fabric.run(*PARTITIONED, partition_key=third), "hidden_states")
    assert "canary" in data.user_failure_data.description
