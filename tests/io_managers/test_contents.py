"""The contents of a table's partitions are those that each partition's own transactions say."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from io_managers import tables
from io_managers.contents import Contents, content_version, made_of_version, stored_content, stored_contents
from io_managers.delta_table import kept_partition, write_partition
from io_managers.errors import StoreError
from io_managers.open_tables import open_table, table_path
from io_managers.removal import remove_partition
from resources.records import digest
from tests.io_managers.test_delta_table import FIVE, OTHER, SPEC, Source, row, rows_of

OLD, NEW = digest([b"old"]), digest([b"new"])


def table(lake: Path) -> DeltaTable:
    found = open_table(table_path(lake, SPEC))
    assert found is not None
    return found


def test_an_absent_table_has_no_contents(tmp_path: Path) -> None:
    assert stored_contents(tmp_path, tables.PROBE_SETS) == Contents({}, {})


@pytest.mark.parametrize("checkpoint", [False, True], ids=["log entries", "a checkpoint, then log entries"])
def test_the_contents_are_what_each_partition_says_of_itself(tmp_path: Path, checkpoint: bool) -> None:
    write_partition(tmp_path, SPEC, Source(OTHER).write(made_of=OLD))
    write_partition(tmp_path, SPEC, Source([row(n) | {"part": "b"} for n in range(2)], part="b").write(made_of=OLD))
    if checkpoint:
        table(tmp_path).create_checkpoint()
    write_partition(tmp_path, SPEC, Source(FIVE).write(made_of=NEW))

    contents = stored_contents(tmp_path, SPEC)

    assert (table_path(tmp_path, SPEC) / "_delta_log" / "_last_checkpoint").exists() == checkpoint
    assert contents.made_of == {"a": content_version(NEW), "b": content_version(OLD)}
    assert {part: version.to_bytes(8, "little") for part, version in contents.content.items()} == {
        part: stored_content(tmp_path, SPEC, {"part": part}) for part in ("a", "b")
    }


def test_a_withdrawn_partition_has_no_content(tmp_path: Path) -> None:
    write_partition(tmp_path, tables.WORK_ITEMS, Source([]).write())
    assert set(stored_contents(tmp_path, tables.WORK_ITEMS).content) == {"a"}
    remove_partition(tmp_path, "a")
    assert stored_contents(tmp_path, tables.WORK_ITEMS).content == {}


def test_rows_that_stay_the_same_are_kept_under_what_they_are_made_of_now(tmp_path: Path) -> None:
    write_partition(tmp_path, SPEC, Source(FIVE).write(made_of=OLD))
    assert kept_partition(tmp_path, SPEC, {"part": "a"}, NEW) is None
    source = Source(FIVE)

    committed = write_partition(tmp_path, SPEC, source.write(made_of=NEW))

    assert (committed.skipped, source.pulls, committed.version) == (
        True,
        0,
        open_table(table_path(tmp_path, SPEC)).version(),
    )
    assert kept_partition(tmp_path, SPEC, {"part": "a"}, OLD) is None
    assert kept_partition(tmp_path, SPEC, {"part": "a"}, NEW) == committed
    assert rows_of(tmp_path) == FIVE
    assert write_partition(tmp_path, SPEC, Source(FIVE).write(made_of=NEW)).version == committed.version


def test_a_partition_that_lost_a_byte_is_not_kept(tmp_path: Path) -> None:
    write_partition(tmp_path, SPEC, Source(FIVE).write(made_of=OLD))
    [file] = (table_path(tmp_path, SPEC) / "part=a").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert kept_partition(tmp_path, SPEC, {"part": "a"}, OLD) is None


def test_what_a_table_says_of_its_content_can_be_what_another_is_made_of(tmp_path: Path) -> None:
    write_partition(tmp_path, SPEC, Source(FIVE).write())
    stored = stored_content(tmp_path, SPEC, {"part": "a"})
    assert made_of_version(stored) == stored_contents(tmp_path, SPEC).content["a"]


def test_a_log_with_a_gap_is_an_error(tmp_path: Path) -> None:
    for rows in (FIVE, OTHER):
        write_partition(tmp_path, SPEC, Source(rows).write())
    log = table_path(tmp_path, SPEC) / "_delta_log"
    (log / "_last_checkpoint").write_text("{}")
    with pytest.raises(StoreError, match="check the disk"):
        stored_contents(tmp_path, SPEC)
