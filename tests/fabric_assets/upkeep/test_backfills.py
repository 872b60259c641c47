"""What is missing or stale is found, and gets done by the real daemon: a schedule tick, a backfill, its runs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable

import dagster as dg
import pytest

from fabric_assets.defs.automation import extract_missing_schedule
from fabric_assets.upkeep import backfills
from fabric_assets.upkeep.registration import withdraw_probe_set
from io_managers import layout
from io_managers.reading import read_hidden_states
from resources.dagster_internals import BulkActionStatus
from resources.errors import ConfigurationError
from tests.fabric_assets.conftest import ALL_ASSETS, PARTITIONED, Fabric
from tests.processes import running_daemon

PATIENCE_S = 240


def to_do(fabric: Fabric) -> tuple[list[str], list[str]]:
    """What would be started, together and alone."""
    work = backfills.to_do(fabric.instance)
    return [s.part for s in work.together], [s.part for s in work.alone]


def of_range(first: str, last: str) -> dict[str, str]:
    return {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}


def test_what_is_missing_and_stale_is_to_be_done_and_what_is_done_is_not(fabric: Fabric) -> None:
    parts = fabric.register(["a", "b", "c"], format="text", shard_rows=1)
    assert to_do(fabric) == ([], [])
    assert "there is no engine" in backfills.to_do(fabric.instance).reason
    assert fabric.extract(parts[1]).success
    assert to_do(fabric) == ([parts[0], parts[2]], [])

    fabric.register(["a", "changed", "c"], format="text", shard_rows=1)
    work = backfills.to_do(fabric.instance)
    assert work.parts == parts
    assert work.reason == "3 partitions: 2 missing, 1 stale (its probe file changed)"

    assert fabric.run(*PARTITIONED, tags=of_range(parts[0], parts[-1])).success
    assert to_do(fabric) == ([], [])
    assert fabric.run("probe_sets", "tokenised_batches", "work_items", partition_key=parts[0]).success
    assert to_do(fabric) == ([], [])


def test_a_tick_with_nothing_to_do_says_why_and_one_with_something_asks_for_a_run(fabric: Fabric) -> None:
    with dg.build_schedule_context(instance=fabric.instance) as context:
        assert isinstance(asked := extract_missing_schedule(context), dg.SkipReason)
        assert "there is no engine" in str(asked.skip_message)
        fabric.register(["a"], format="text")
        assert fabric.run("engine", "engine_validation_report").success
        assert isinstance(extract_missing_schedule(context), dg.RunRequest)


def test_a_backfill_without_its_engine_s_directory_says_what_to_copy_where(fabric: Fabric) -> None:
    fabric.register(["a"], format="text")
    assert fabric.run("engine", "engine_validation_report").success
    work = backfills.to_do(fabric.instance)
    [directory] = layout.engines_path().iterdir()
    shutil.rmtree(directory)
    with pytest.raises(ConfigurationError, match=rf"is not at {directory}; .* copy that there"):
        backfills.start(fabric.instance, None, work)
    assert fabric.instance.get_backfills() == []


def test_another_model_makes_everything_missing(fabric: Fabric) -> None:
    parts = fabric.register(["a", "b"], format="text", shard_rows=1)
    assert fabric.run(*ALL_ASSETS[3:5]).success
    assert fabric.run(*PARTITIONED, tags=of_range(*parts)).success
    assert to_do(fabric) == ([], [])
    assert fabric.run("engine", "engine_validation_report", model={"over_long": "truncate_left"}).success
    assert to_do(fabric) == (parts, [])


def test_what_failed_is_started_again_alone_so_that_it_holds_up_no_other(fabric: Fabric) -> None:
    good = fabric.register(["a", "b"], format="text", shard_rows=1, name="good")
    [bad] = fabric.register(["c"], format="text", name="bad")
    assert fabric.run("engine", "engine_validation_report").success
    (fabric.folder / "bad.txt").write_text("damaged\n")
    assert not fabric.run(*PARTITIONED, tags=of_range(good[1], bad)).success
    work = backfills.to_do(fabric.instance)
    assert ([s.part for s in work.together], [s.part for s in work.alone]) == ([good[0]], [good[1], bad])

    graph = fabric.definitions.get_repository_def().asset_graph
    ids = backfills.start(fabric.instance, graph, work)

    targets = [fabric.instance.get_backfill(i).asset_backfill_data.target_subset for i in ids]
    assert [t.get_partitions_subset(dg.AssetKey("hidden_states")).get_partition_keys() for t in targets] == [
        {good[0]},
        {good[1]},
        {bad},
    ]
    assert backfills.to_do(fabric.instance).reason.endswith("is still at work")


def test_a_withdrawn_set_leaves_no_vector_and_no_partition_and_says_so(fabric: Fabric) -> None:
    [part] = fabric.register(["a", "b"], format="text")
    [kept] = fabric.register(["c"], format="text", name="kept")
    assert fabric.extract(part).success
    assert fabric.run(*PARTITIONED, partition_key=kept).success

    [gone] = withdraw_probe_set(fabric.instance, "set")

    assert (gone.part, gone.probes, gone.vectors) == (part, 2, 2)
    assert list(read_hidden_states()[0]["part"]) == [kept]
    assert fabric.instance.get_dynamic_partitions("probe_shards") == [kept]
    [event] = fabric.instance.fetch_observations(dg.AssetKey("hidden_states"), limit=5).records
    assert event.partition_key == part
    assert event.event_log_entry.dagster_event.event_specific_data.asset_observation.metadata["withdrawn"].value == 2
    assert to_do(fabric) == ([], [])


@pytest.mark.slow
def test_a_schedule_tick_has_the_daemon_do_what_is_missing_and_stale(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FABRIC_MODEL", str(fabric.checkpoint))
    parts = fabric.register([f"text {n}" for n in range(6)], format="text", shard_rows=1)
    assert fabric.extract(parts[2]).success
    [stale] = fabric.register(["before"], format="text", name="stale")
    assert fabric.run(*PARTITIONED, partition_key=stale).success
    fabric.register(["after"], format="text", name="stale")

    with (
        (fabric.folder / "daemon.log").open("wb") as log,
        running_daemon(
            layout.home() / "dagster", {"FABRIC_SCHEDULE": "* * * * *", "FABRIC_PARTITIONS_A_RUN": "2"}, log
        ),
    ):
        ended = {BulkActionStatus.COMPLETED_SUCCESS, BulkActionStatus.COMPLETED_FAILED, BulkActionStatus.FAILED}
        wait_for(lambda: any(b.status in ended for b in fabric.instance.get_backfills()))

    [backfill] = fabric.instance.get_backfills()
    assert (backfill.status, backfill.title) == (
        BulkActionStatus.COMPLETED_SUCCESS,
        "6 partitions: 5 missing, 1 stale (its probe file changed)",
    )
    runs = fabric.instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": backfill.backfill_id}))
    ranges = sorted(tuple(run.tags[tag] for tag in of_range("", "")) for run in runs)
    assert ranges == [(parts[0], parts[1]), (parts[3], parts[4]), (parts[5], stale)]
    assert all(run.asset_check_selection for run in runs)
    assert to_do(fabric) == ([], [])
    ids, _ = read_hidden_states()
    assert sorted(ids["part"]) == sorted([*parts, stale])


def wait_for(seen: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not seen():
        assert time.monotonic() < deadline, f"nothing in {PATIENCE_S} s"
        time.sleep(0.5)
