"""A table is opened once a version, and never given in an older one."""

from __future__ import annotations

import shutil
from pathlib import Path

from io_managers.delta_table import write_partition
from io_managers.open_tables import MOST_HELD, open_table, stored_files, table_path
from tests.io_managers.test_delta_table import FIVE, OTHER, SPEC, Source


def test_what_has_not_changed_is_not_opened_again_and_what_has_is(tmp_path: Path) -> None:
    path = table_path(tmp_path, SPEC)
    assert open_table(path) is None
    write_partition(tmp_path, SPEC, Source(FIVE).write())
    first = open_table(path)
    assert open_table(path) is first

    write_partition(tmp_path, SPEC, Source(OTHER).write())

    second = open_table(path)
    assert second.version() == first.version() + 1
    assert [file.rows for file in stored_files(second, {"part": "a"})] == [3]


def test_a_table_made_anew_under_its_path_is_another(tmp_path: Path) -> None:
    path = table_path(tmp_path, SPEC)
    for rows in (FIVE, OTHER):
        write_partition(tmp_path, SPEC, Source(rows).write())
        assert [file.rows for file in stored_files(open_table(path), {})] == [len(rows)]
        shutil.rmtree(path)
        assert open_table(path) is None


def test_no_more_than_a_few_are_held(tmp_path: Path) -> None:
    lakes = [tmp_path / str(n) for n in range(MOST_HELD + 1)]
    write_partition(lakes[0], SPEC, Source(FIVE).write())
    first = open_table(table_path(lakes[0], SPEC))
    for lake in lakes[1:]:
        shutil.copytree(lakes[0], lake)
        assert open_table(table_path(lake, SPEC)).version() == first.version()
    assert open_table(table_path(lakes[0], SPEC)) is not first
