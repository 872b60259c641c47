"""The sensor of the probe folder, the job that it starts, and the check of stale vectors."""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg
import pytest

from fabric_assets.defs.automation import probe_folder, register_probe_files
from io_managers.reading import connect
from tests.fabric_assets.conftest import Fabric


@pytest.fixture
def watched(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = fabric.folder / "watched"
    folder.mkdir()
    (folder / "_format.json").write_text('{"shard_rows": 2}')
    monkeypatch.setenv("FABRIC_WATCH", str(folder))
    return folder


class Ticks:
    """The sensor's ticks, each from the cursor that the one before it left; runs what they ask for."""

    def __init__(self, fabric: Fabric) -> None:
        self.instance, self.cursor = fabric.instance, None

    def tick(self) -> list[bool]:
        """Whether each run that was asked for succeeded."""
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor)
        result = probe_folder(context)
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor
        return [
            register_probe_files.execute_in_process(
                instance=self.instance, run_config=request.run_config, raise_on_error=False
            ).success
            for request in result.run_requests or []
        ]

    @property
    def parts(self) -> list[str]:
        return list(self.instance.get_dynamic_partitions("probe_shards"))


def test_files_become_partitions_once_they_stay_the_same(fabric: Fabric, watched: Path) -> None:
    ticks = Ticks(fabric)
    assert ticks.tick() == []
    (watched / "one.txt").write_text("a\nb\nc\n")
    assert (ticks.tick(), ticks.parts) == ([], [])
    (watched / "one.txt").write_text("a\nb\nc\nd\ne\n")
    assert (ticks.tick(), ticks.parts) == ([], [])
    assert (ticks.tick(), ticks.parts) == ([True], ["one.00000", "one.00001", "one.00002"])
    assert ticks.tick() == []

    (watched / "one.txt").write_text("a\n")
    os.utime(watched / "one.txt", (1, 1))
    assert (ticks.tick(), ticks.tick(), ticks.parts) == ([], [True], ["one.00000"])


def test_a_file_that_cannot_be_read_stops_no_other_and_is_not_tried_again(fabric: Fabric, watched: Path) -> None:
    ticks = Ticks(fabric)
    (watched / "bad.jsonl").write_text('{"other": 1}\n')
    (watched / "good.txt").write_text("a\n")
    assert (ticks.tick(), ticks.tick(), ticks.parts) == ([], [False], ["good.00000"])
    assert ticks.tick() == []


def test_without_a_folder_to_watch_the_sensor_says_so(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FABRIC_WATCH", raising=False)
    result = probe_folder(dg.build_sensor_context(instance=fabric.instance))
    assert isinstance(result, dg.SkipReason) and "FABRIC_WATCH" in str(result.skip_message)

    run_config = {"ops": {"register_arrivals": {"config": {"entries": ["one.txt"]}}}}
    with pytest.raises(dg.Failure, match="FABRIC_WATCH is not set"):
        register_probe_files.execute_in_process(instance=fabric.instance, run_config=run_config)


def test_vectors_of_earlier_probes_are_seen_and_kept_out_of_joins(fabric: Fabric) -> None:
    """Materialising probe_sets alone leaves the vectors of the texts before."""
    [part] = fabric.register(["one", "two"], format="text")
    assert fabric.extract(part).success
    fabric.register(["three", "two"], format="text")

    result = fabric.run("probe_sets", partition_key=part)

    [check] = result.get_asset_check_evaluations()
    assert (check.check_name, check.passed, check.severity) == ("vectors_current", False, dg.AssetCheckSeverity.WARN)
    assert (check.partition, check.metadata["stale"].value) == (part, 1)
    with connect() as connection:
        assert connection.sql("SELECT * FROM hidden_states JOIN probe_sets USING (part, probe_id)").fetchall() == []
        assert connection.sql("SELECT part FROM stale_partitions").fetchall() == [(part,)]
